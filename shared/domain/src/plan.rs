//! A plan leaves no choice to whoever carries it out, and is checked before it is. An unsound plan is
//! our own bug: it is never written.

use crate::deal::{Deal, FoldError, RefundOrder};
use crate::fact::{Change, Fact};
use crate::ids::{ActorId, DealId};
use crate::key::{Fingerprint, Key};
use crate::message::{Command, Message, Recipient};
use crate::money::{self, Account, Nano, Posting};
use crate::state::{self, Effect, Status};
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub key: Key,
    pub fingerprint: Fingerprint,
    /// What was reported or commanded.
    pub event_type: &'static str,
    pub deal: DealId,
    /// One fact, or two where a state is passed through.
    pub steps: Vec<Step>,
    pub messages: Vec<Message>,
}

/// A fact to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub event_type: &'static str,
    pub to: Status,
    pub actor: Option<ActorId>,
    pub changes: Vec<Change>,
    pub postings: Vec<Posting>,
}

impl Step {
    /// A fact of the system that moves no money.
    pub fn of_system(event_type: &'static str, to: Status, changes: Vec<Change>) -> Self {
        Self { event_type, to, actor: None, changes, postings: Vec::new() }
    }
}

/// A checked plan: the facts with their places, and the deal as it will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub plan: Plan,
    pub before: Option<Deal>,
    pub after: Deal,
    pub facts: Vec<Fact>,
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsound {
    NoStep,
    OtherDeal(DealId),
    IllegalMove {
        from: Option<Status>,
        to: Status,
    },
    Unbalanced {
        event_type: &'static str,
        sum: i128,
    },
    ForeignAccount(Account),
    Overdraft(Account),
    /// The escrow is not what the deposits left in it.
    EscrowMismatch,
    /// The refundable balance is not what the open orders add up to.
    RefundMismatch,
    /// A final state must leave nothing in escrow.
    EscrowStranded(Status),
    /// Money waits, and nobody would ever look.
    NoDeadline(Status),
    /// PUBLISHED is passed through; nothing would ever lead out of it.
    RestsInPublished,
    /// From FUNDED until it is released or refunded, a deal holds exactly its price.
    EscrowIsNotPrice,
    /// Money becomes payable by a release alone.
    PayableWithoutRelease,
    /// A refund that is ordered and not commanded, or the other way round, or a payout that is not
    /// what is payable.
    CommandMismatch,
    /// A move without what document 4 wants it to bring about.
    MissingEffect(Effect),
    Fold(FoldError),
}

impl Plan {
    /// Checks the plan against the deal it was decided on. Time never runs backwards within a deal:
    /// its facts and its outbox positions keep their order though two machines' clocks disagree.
    pub fn check(self, before: Option<&Deal>, now: Timestamp) -> Result<Checked, Unsound> {
        let at = before.map_or(now, |deal| deal.updated_at.max(now));
        let first_seq = before.map_or(1, |deal| deal.version + 1);
        if before.is_some_and(|deal| deal.id != self.deal) {
            return Err(Unsound::OtherDeal(self.deal));
        }
        let last_seq = first_seq + self.steps.len() as u64 - u64::from(!self.steps.is_empty());
        let position = outbox_position(at, &self.deal.to_string(), last_seq);
        let mut deal = before.cloned();
        let mut facts = Vec::with_capacity(self.steps.len());
        for (seq, step) in (first_seq..).zip(&self.steps) {
            let from = deal.as_ref().map(|deal| deal.status);
            check_step(self.deal, from, step)?;
            if let Some(deal) = &deal {
                check_effects(deal, step, &self.messages)?;
            }
            let fact = Fact {
                seq,
                event_type: step.event_type,
                from,
                to: step.to,
                actor: step.actor,
                changes: step.changes.clone(),
                postings: step.postings.clone(),
                at,
                outbox_position: position.clone(),
            };
            match &mut deal {
                Some(deal) => deal.apply(&fact).map_err(Unsound::Fold)?,
                None => deal = Some(Deal::created_by(&fact).map_err(Unsound::Fold)?),
            }
            facts.push(fact);
        }
        let after = deal.filter(|_| !facts.is_empty()).ok_or(Unsound::NoStep)?;
        if after.id != self.deal {
            return Err(Unsound::OtherDeal(after.id));
        }
        check_deal(&after)?;
        check_commands(&after, &facts, &self.messages)?;
        Ok(Checked { plan: self, before: before.cloned(), after, facts, at })
    }
}

impl Checked {
    /// The key of such a plan never expires: delivered again after any time, it is a duplicate.
    pub fn moves_money(&self) -> bool {
        self.facts.iter().any(|fact| !fact.postings.is_empty())
    }
}

/// A move brings about all that the table wants of it, or of one of its triggers.
fn check_effects(deal: &Deal, step: &Step, messages: &[Message]) -> Result<(), Unsound> {
    if deal.status == step.to {
        return Ok(());
    }
    let mut missing = None;
    for legal in state::moves(deal.status, step.to) {
        let lacks = legal.effects.iter().find(|effect| !has(**effect, deal, step, messages));
        match lacks {
            None => return Ok(()),
            Some(effect) => missing = missing.or(Some(*effect)),
        }
    }
    missing.map_or(Ok(()), |effect| Err(Unsound::MissingEffect(effect)))
}

fn has(effect: Effect, deal: &Deal, step: &Step, messages: &[Message]) -> bool {
    let tells = |actor: ActorId| {
        messages.iter().any(|message| match message {
            Message::Notification(notification) => {
                notification.recipients.contains(&Recipient::User(actor))
            }
            Message::Command(_) => false,
        })
    };
    let commands = |wanted: fn(&Command) -> bool| {
        messages
            .iter()
            .any(|message| matches!(message, Message::Command(command) if wanted(command)))
    };
    let credits = |account: Account| {
        step.postings
            .iter()
            .any(|posting| posting.account == account && posting.amount.is_positive())
    };
    let escrow_untouched =
        || step.postings.iter().all(|posting| posting.account != Account::Escrow(deal.id));
    match effect {
        Effect::NotifyOwner => tells(deal.owner),
        Effect::NotifyAdvertiser => tells(deal.advertiser),
        Effect::NotifyBoth => tells(deal.owner) && tells(deal.advertiser),
        Effect::NotifyOtherParty => {
            let party = step.actor.and_then(|actor| deal.party(actor));
            party.is_some_and(|party| tells(deal.actor(party.other())))
        }
        Effect::CommandDepositAddress => {
            commands(|command| matches!(command, Command::GenerateDepositAddress))
        }
        Effect::CommandPublication => {
            commands(|command| matches!(command, Command::PublishPost { .. }))
        }
        Effect::CommandVerification => {
            commands(|command| matches!(command, Command::StartVerification { .. }))
        }
        // A commission of the whole price leaves nothing to pay out.
        Effect::CommandPayout => {
            !credits(Account::Payable(deal.id))
                || commands(|command| matches!(command, Command::ExecutePayout { .. }))
        }
        Effect::CreditEscrow => credits(Account::Escrow(deal.id)),
        Effect::FreezeEscrow => escrow_untouched(),
        // `check_deal` sees that nothing is left in escrow, and that every order is booked.
        Effect::OrderRefund | Effect::ReleaseEscrow => true,
    }
}

/// What workers are told to pay is what the books say is owed.
fn check_commands(after: &Deal, facts: &[Fact], messages: &[Message]) -> Result<(), Unsound> {
    for fact in facts {
        let payable = Account::Payable(after.id);
        let credited = fact
            .postings
            .iter()
            .any(|posting| posting.account == payable && posting.amount.is_positive());
        if credited && (fact.to != Status::CompletedReleased || fact.from == Some(fact.to)) {
            return Err(Unsound::PayableWithoutRelease);
        }
        let commanded = |order: &RefundOrder| {
            let command = order.command();
            messages.iter().any(|message| *message == Message::Command(command.clone()))
        };
        for change in &fact.changes {
            if let Change::RefundOrdered(order) = change
                && !commanded(order)
            {
                return Err(Unsound::CommandMismatch);
            }
        }
    }
    for message in messages {
        let owed = match message {
            Message::Command(Command::ExecuteRefund { number, .. }) => {
                let mut open = after.refunds.iter().filter(|order| order.settled.is_none());
                let order = open.find(|order| order.number == *number);
                order.is_some_and(|order| Message::Command(order.command()) == *message)
            }
            Message::Command(Command::ExecutePayout { amount, to, .. }) => {
                *amount == after.payable && after.payout_address == Some(*to)
            }
            Message::Command(
                Command::GenerateDepositAddress
                | Command::PublishPost { .. }
                | Command::StartVerification { .. },
            )
            | Message::Notification(_) => true,
        };
        if !owed {
            return Err(Unsound::CommandMismatch);
        }
    }
    Ok(())
}

/// The states in which a deal is paid for and not yet settled.
fn holds_its_price(status: Status) -> bool {
    match status {
        Status::Funded
        | Status::CreativeSubmitted
        | Status::CreativeApproved
        | Status::Scheduled
        | Status::Published
        | Status::DeliveryVerifying
        | Status::Disputed => true,
        Status::Draft
        | Status::OfferPending
        | Status::Negotiating
        | Status::Accepted
        | Status::AwaitingPayment
        | Status::CompletedReleased
        | Status::Cancelled
        | Status::Refunded
        | Status::Expired => false,
    }
}

fn check_step(deal: DealId, from: Option<Status>, step: &Step) -> Result<(), Unsound> {
    let legal = match from {
        None => step.to == Status::Draft,
        Some(from) => from == step.to || state::moves(from, step.to).next().is_some(),
    };
    if !legal {
        return Err(Unsound::IllegalMove { from, to: step.to });
    }
    let sum = money::sum(&step.postings);
    if sum != 0 {
        return Err(Unsound::Unbalanced { event_type: step.event_type, sum });
    }
    for posting in &step.postings {
        match posting.account {
            Account::Escrow(of) | Account::Payable(of) | Account::Refundable(of) if of != deal => {
                return Err(Unsound::ForeignAccount(posting.account));
            }
            Account::Escrow(_)
            | Account::Payable(_)
            | Account::Refundable(_)
            | Account::ExternalTon
            | Account::Commission
            | Account::NetworkFees
            | Account::Suspense => {}
        }
    }
    Ok(())
}

/// What holds of every deal at rest.
pub fn check_deal(deal: &Deal) -> Result<(), Unsound> {
    if deal.status == Status::Published {
        return Err(Unsound::RestsInPublished);
    }
    let balances = [
        (Account::Escrow(deal.id), deal.escrow),
        (Account::Payable(deal.id), deal.payable),
        (Account::Refundable(deal.id), deal.refundable),
    ];
    for (account, balance) in balances {
        if balance < Nano::ZERO {
            return Err(Unsound::Overdraft(account));
        }
    }
    let open_orders = deal.refunds.iter().filter(|order| order.settled.is_none());
    if total(open_orders.map(|order| order.amount)) != i128::from(deal.refundable.get()) {
        return Err(Unsound::RefundMismatch);
    }
    if deal.deposits.iter().any(|deposit| deposit.returned > deposit.amount) {
        return Err(Unsound::EscrowMismatch);
    }
    if deal.status.is_final() {
        if deal.escrow != Nano::ZERO {
            return Err(Unsound::EscrowStranded(deal.status));
        }
    } else {
        let left = total(deal.deposits.iter().map(|deposit| deposit.amount))
            - total(deal.deposits.iter().map(|deposit| deposit.returned));
        if left != i128::from(deal.escrow.get()) {
            return Err(Unsound::EscrowMismatch);
        }
    }
    if holds_its_price(deal.status) && deal.escrow != deal.terms.price {
        return Err(Unsound::EscrowIsNotPrice);
    }
    let unsettled = deal.payable.is_positive() || deal.refundable.is_positive();
    let unwatched = deal.escrow.is_positive() && deal.deadline_at.is_none();
    if unwatched || (unsettled && deal.settlement_due_at.is_none()) {
        return Err(Unsound::NoDeadline(deal.status));
    }
    Ok(())
}

fn total(amounts: impl Iterator<Item = Nano>) -> i128 {
    amounts.map(|amount| i128::from(amount.get())).sum()
}

/// Sorts an aggregate's rows in commit order.
pub fn outbox_position(at: Timestamp, aggregate: &str, seq: u64) -> String {
    format!("{:013}#{aggregate}#{seq:010}", at.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deal::{Deposit, Party, Terms};
    use crate::fact::Creation;
    use crate::ids::ChannelId;
    use crate::message::{Kind, both_parties};
    use crate::money::{BasisPoints, transfer};
    use crate::ton::{Address, TxHash};

    const ID: DealId = DealId::from_u128(7);
    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn nano(amount: i64) -> Nano {
        Nano::new(amount)
    }

    fn plan_of(steps: Vec<Step>, messages: Vec<Message>) -> Plan {
        let fingerprint = Fingerprint::of(&[]);
        Plan { key: Key::command("c"), fingerprint, event_type: "TEST", deal: ID, steps, messages }
    }

    fn draft() -> Deal {
        let creation = Creation {
            deal: ID,
            advertiser: ActorId(1),
            owner: ActorId(2),
            channel: ChannelId(3),
            commission: BasisPoints::DEFAULT,
            terms: Terms { version: 1, price: nano(100), proposed_by: Party::Advertiser },
        };
        let changes = vec![Change::Created(Box::new(creation))];
        let step = Step::of_system("DRAFT", Status::Draft, changes);
        plan_of(vec![step], Vec::new()).check(None, NOW).expect("a draft is sound").after
    }

    /// A deal with 100 nanotons in escrow, in any state.
    fn holding(status: Status) -> Deal {
        let deposit = Deposit {
            tx: TxHash::from_bytes([1; 32]),
            sender: Address::from_parts(0, [5; 32]),
            amount: nano(100),
            returned: nano(0),
        };
        let (escrow, deadline_at) = (nano(100), Some(NOW));
        Deal { status, escrow, deadline_at, deposits: vec![deposit], ..draft() }
    }

    fn step(to: Status, postings: &[Posting]) -> Step {
        let word = to.name();
        Step { event_type: word, to, actor: None, changes: Vec::new(), postings: postings.to_vec() }
    }

    fn checked(before: &Deal, step: Step, messages: Vec<Message>) -> Result<Checked, Unsound> {
        plan_of(vec![step], messages).check(Some(before), NOW)
    }

    #[test]
    fn a_move_that_is_not_in_the_table_is_refused() {
        let to = Status::CompletedReleased;
        let found = checked(&draft(), step(to, &[]), Vec::new());
        assert_eq!(found, Err(Unsound::IllegalMove { from: Some(Status::Draft), to }));
        let born = plan_of(vec![step(Status::Funded, &[])], Vec::new()).check(None, NOW);
        assert_eq!(born, Err(Unsound::IllegalMove { from: None, to: Status::Funded }));
    }

    #[test]
    fn postings_balance_and_stay_with_their_deal() {
        let before = holding(Status::Funded);
        let lone = [Posting { account: Account::Escrow(ID), amount: nano(5) }];
        let found = checked(&before, step(Status::Funded, &lone), Vec::new());
        assert_eq!(found, Err(Unsound::Unbalanced { event_type: "FUNDED", sum: 5 }));
        let other = Account::Escrow(DealId::from_u128(8));
        let abroad = transfer(Account::ExternalTon, other, nano(5));
        let found = checked(&before, step(Status::Funded, &abroad), Vec::new());
        assert_eq!(found, Err(Unsound::ForeignAccount(other)));
    }

    #[test]
    fn no_account_goes_below_zero_and_no_money_comes_from_nowhere() {
        let before = holding(Status::Funded);
        let kept = transfer(Account::ExternalTon, Account::Escrow(ID), nano(1));
        let mut surplus = step(Status::Funded, &kept);
        surplus.changes = vec![Change::Deposited(Deposit {
            tx: TxHash::from_bytes([2; 32]),
            sender: Address::from_parts(0, [5; 32]),
            amount: nano(1),
            returned: nano(0),
        })];
        assert_eq!(checked(&before, surplus, Vec::new()), Err(Unsound::EscrowIsNotPrice));
        let too_much = transfer(Account::Escrow(ID), Account::Suspense, nano(101));
        let found = checked(&before, step(Status::Funded, &too_much), Vec::new());
        assert_eq!(found, Err(Unsound::Overdraft(Account::Escrow(ID))));
        let unexplained = transfer(Account::ExternalTon, Account::Escrow(ID), nano(1));
        let found = checked(&before, step(Status::Funded, &unexplained), Vec::new());
        assert_eq!(found, Err(Unsound::EscrowMismatch));
        let unordered = transfer(Account::ExternalTon, Account::Refundable(ID), nano(1));
        let found = checked(&before, step(Status::Funded, &unordered), Vec::new());
        assert_eq!(found, Err(Unsound::RefundMismatch));
    }

    #[test]
    fn money_is_neither_stranded_nor_forgotten() {
        let found = checked(&holding(Status::Funded), step(Status::Cancelled, &[]), Vec::new());
        assert_eq!(found, Err(Unsound::EscrowStranded(Status::Cancelled)));
        let mut forgetful = step(Status::Funded, &[]);
        forgetful.changes = vec![Change::Deadline(None)];
        let found = checked(&holding(Status::Funded), forgetful, Vec::new());
        assert_eq!(found, Err(Unsound::NoDeadline(Status::Funded)));
    }

    #[test]
    fn what_is_ordered_is_commanded_and_what_is_commanded_is_owed() {
        let before = holding(Status::Funded);
        let order = RefundOrder {
            number: 1,
            amount: nano(100),
            to: Address::from_parts(0, [5; 32]),
            deposit: TxHash::from_bytes([1; 32]),
            settled: None,
        };
        let refund = || {
            let postings = transfer(Account::Escrow(ID), Account::Refundable(ID), nano(100));
            let mut step = step(Status::Cancelled, &postings);
            step.changes = vec![
                Change::Returned { deposit: order.deposit, amount: nano(100) },
                Change::RefundOrdered(order.clone()),
                Change::SettlementDue(Some(NOW)),
            ];
            step
        };
        let commanded = vec![Message::Command(order.command())];
        assert!(checked(&before, refund(), commanded.clone()).is_ok());
        let mismatch = Err(Unsound::CommandMismatch);
        assert_eq!(checked(&before, refund(), Vec::new()), mismatch);
        assert_eq!(checked(&before, step(Status::Funded, &[]), commanded), mismatch);
        let to = Address::from_parts(0, [6; 32]);
        let (amount, commission) = (nano(1), nano(0));
        let payout = vec![Message::Command(Command::ExecutePayout { amount, commission, to })];
        assert_eq!(checked(&before, step(Status::Funded, &[]), payout), mismatch);
        let mut early =
            step(Status::Funded, &transfer(Account::ExternalTon, Account::Payable(ID), nano(1)));
        early.changes = vec![Change::SettlementDue(Some(NOW))];
        let found = checked(&before, early, Vec::new());
        assert_eq!(found, Err(Unsound::PayableWithoutRelease));
    }

    #[test]
    fn a_deal_does_not_rest_in_published() {
        let before = holding(Status::Scheduled);
        let found = checked(&before, step(Status::Published, &[]), Vec::new());
        assert_eq!(found, Err(Unsound::RestsInPublished));
    }

    #[test]
    fn a_move_brings_about_what_the_table_wants_of_it() {
        let before = holding(Status::DeliveryVerifying);
        let dispute = || step(Status::Disputed, &[]);
        let kind = Kind::DealMoved { from: before.status, to: Status::Disputed };
        let told = |recipients| vec![Message::notify(kind, recipients, "")];
        let found = checked(&before, dispute(), Vec::new());
        assert_eq!(found, Err(Unsound::MissingEffect(Effect::NotifyBoth)));
        let owner_only = told(vec![Recipient::User(before.owner)]);
        let found = checked(&before, dispute(), owner_only);
        assert_eq!(found, Err(Unsound::MissingEffect(Effect::NotifyBoth)));
        assert!(checked(&before, dispute(), told(both_parties(&before))).is_ok());
        let touched = transfer(Account::Escrow(ID), Account::Suspense, nano(1));
        let found = checked(&before, step(Status::Disputed, &touched), told(both_parties(&before)));
        assert_eq!(found, Err(Unsound::MissingEffect(Effect::FreezeEscrow)));
        let commands = [
            (Status::OfferPending, Status::Accepted, Effect::CommandDepositAddress),
            (Status::CreativeApproved, Status::Scheduled, Effect::CommandPublication),
            (Status::AwaitingPayment, Status::Funded, Effect::CreditEscrow),
            (Status::Published, Status::DeliveryVerifying, Effect::CommandVerification),
        ];
        for (from, to, effect) in commands {
            let found = checked(&holding(from), step(to, &[]), Vec::new());
            assert_eq!(found, Err(Unsound::MissingEffect(effect)), "{from} → {to}");
        }
        let released = [
            Posting { account: Account::Escrow(ID), amount: nano(-100) },
            Posting { account: Account::Payable(ID), amount: nano(90) },
            Posting { account: Account::Commission, amount: nano(10) },
        ];
        let found = checked(&before, step(Status::CompletedReleased, &released), Vec::new());
        assert_eq!(found, Err(Unsound::MissingEffect(Effect::CommandPayout)));
    }

    #[test]
    fn facts_follow_each_other_and_time_never_runs_backwards() {
        let mut before = draft();
        before.updated_at = NOW.plus_secs(60);
        let cancelled = checked(&before, step(Status::Cancelled, &[]), Vec::new()).expect("sound");
        assert_eq!(cancelled.at, NOW.plus_secs(60));
        assert_eq!((cancelled.facts[0].seq, cancelled.after.version), (2, 2));
        assert!(cancelled.after.outbox_position > before.outbox_position);
        assert_eq!(plan_of(Vec::new(), Vec::new()).check(Some(&before), NOW), Err(Unsound::NoStep));
    }
}
