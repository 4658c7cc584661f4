//! Decides what a command of a party, an operator or the deposit-address worker does to its deal. The
//! table of moves says what is legal and who may do it; a refusal is an answer and names the state.

// A new state must make every decision that does not know it fail to compile.
#![warn(clippy::wildcard_enum_match_arm)]

use domain::command::{Action, ActorCommand, NOT_AUTHORISED, Reissued, Role};
use domain::deal::{Deal, MAX_ADMINS, Party, Terms};
use domain::decision::{Decision, Wait};
use domain::fact::{Change, Creation};
use domain::filing::Filing;
use domain::ids::ActorId;
use domain::message::{Command, Kind, Message, Recipient};
use domain::money::{Nano, Posting};
use domain::plan::{Plan, Step};
use domain::policy::Moment;
use domain::refund::give_back_all;
use domain::release::{payout_command, release};
use domain::state::{Actor, MOVES, Status, move_by};
use domain::ton::Address;

/// Escrow must not be parked for longer than this by a far publication time.
const MAX_AHEAD_SECS: u32 = 365 * 24 * 3600;

pub fn decide(deal: Option<&Deal>, command: &ActorCommand, moment: &Moment<'_>) -> Decision {
    let Some(deal) = deal else { return on_nothing(command, moment) };
    if let Action::Create { .. } = command.action {
        let detail = format!("the deal exists: {} in version {}", deal.status, deal.version);
        return Decision::refuse("DEAL_EXISTS", detail);
    }
    if command.action.role() == Role::Member && roles(deal, command).is_empty() {
        return Decision::refuse(NOT_AUTHORISED, "actor_id is no party and no admin of this deal");
    }
    if deal.status == Status::Published {
        return Decision::refuse_critical("CORRUPT_DEAL", "the deal row rests in PUBLISHED");
    }
    if is_there_already(deal, &command.action) && is_ever_entitled(deal, command) {
        let (key, hash) = (command.key(), command.fingerprint);
        return Decision::File(Filing::skip(key, hash, ActorCommand::EVENT_TYPE, deal.id));
    }
    if let Some(expected) = command.expected_version.filter(|version| *version != deal.version) {
        let detail =
            format!("expected_version is {expected}; the deal is in version {}", deal.version);
        if expected > deal.version {
            return Decision::not_ready("AHEAD", detail, Wait::Backoff);
        }
        return Decision::refuse("VERSION_CONFLICT", detail);
    }
    match carry_out(deal, command, moment) {
        Ok(plan) => Decision::Apply(plan),
        Err((code, detail)) => Decision::refuse(code, detail),
    }
}

type Refused = (&'static str, String);

/// Without a deal there is only creating one.
fn on_nothing(command: &ActorCommand, moment: &Moment<'_>) -> Decision {
    let Action::Create { owner, channel, price } = command.action else {
        return Decision::not_ready("UNKNOWN_DEAL", "there is no such deal", Wait::Backoff);
    };
    let Some(advertiser) = command.actor else {
        return Decision::refuse(NOT_AUTHORISED, "create needs an actor_id");
    };
    if command.expected_version != Some(0) {
        return Decision::refuse("VERSION_CONFLICT", "a new deal has expected_version 0");
    }
    if owner == advertiser {
        return Decision::refuse("SAME_PARTIES", "payload.owner_id is the advertiser");
    }
    let commission = moment.policy.commission;
    let terms = Terms { version: 1, price, proposed_by: Party::Advertiser };
    let creation = Creation { deal: command.deal, advertiser, owner, channel, commission, terms };
    let changes = vec![Change::Created(Box::new(creation))];
    Decision::Apply(plan(command, "DRAFT", Status::Draft, changes, Vec::new(), Vec::new()))
}

/// What the actor is to this deal. A worker or an operator was told apart by the way it came.
fn roles(deal: &Deal, command: &ActorCommand) -> Vec<Actor> {
    let Some(actor) = command.actor else { return Vec::new() };
    let mut roles = match deal.party(actor) {
        Some(Party::Advertiser) => vec![Actor::Advertiser],
        Some(Party::Owner) => vec![Actor::Owner],
        None => Vec::new(),
    };
    if deal.admins.contains(&actor) {
        roles.push(Actor::Admin);
    }
    roles
}

/// Whether the actor could make such a move in any state: only then "it is done already" is an answer.
fn is_ever_entitled(deal: &Deal, command: &ActorCommand) -> bool {
    let roles = match command.action.role() {
        Role::System | Role::Operator => return true,
        Role::Member => roles(deal, command),
    };
    MOVES.iter().filter(|step| step.trigger == command.action.name()).any(|step| {
        step.actors.contains(&Actor::BothParties)
            || roles.iter().any(|role| step.actors.contains(role))
    })
}

/// A command without content that asks for what is the case already is done. Where there is content
/// (terms, an address, a time), being in the state proves nothing.
fn is_there_already(deal: &Deal, action: &Action) -> bool {
    match action {
        Action::SubmitOffer => deal.status == Status::OfferPending,
        Action::Cancel | Action::Reject | Action::Withdraw | Action::AgreeCancel => {
            deal.status == Status::Cancelled
        }
        Action::Approve => deal.status == Status::CreativeApproved,
        Action::DisputeQuality { .. } | Action::OpenDispute { .. } => {
            deal.status == Status::Disputed
        }
        Action::ResolveForOwner { .. } => deal.status == Status::CompletedReleased,
        Action::ResolveForAdvertiser { .. } => deal.status == Status::Refunded,
        Action::DepositAddressReady { address } => {
            deal.status == Status::AwaitingPayment && deal.deposit_address == Some(*address)
        }
        Action::Create { .. }
        | Action::CounterOffer { .. }
        | Action::Accept { .. }
        | Action::Agree { .. }
        | Action::RevokeCancel
        | Action::SubmitDraft { .. }
        | Action::RequestRevision { .. }
        | Action::Schedule { .. }
        | Action::PublishNow
        | Action::SetChannelAdmins { .. }
        | Action::Reissue(_) => false,
    }
}

fn carry_out(deal: &Deal, command: &ActorCommand, moment: &Moment<'_>) -> Result<Plan, Refused> {
    let mover = Mover { deal, command, moment };
    match &command.action {
        Action::Create { .. } => Err(("DEAL_EXISTS", "the deal exists".to_owned())),
        Action::SubmitOffer
        | Action::Cancel
        | Action::Reject
        | Action::Withdraw
        | Action::Approve => mover.go(Vec::new(), Vec::new()),
        Action::CounterOffer { price, payout_address } => mover.counter(*price, *payout_address),
        Action::Accept { terms_version, payout_address } => {
            mover.accept(*terms_version, Some(*payout_address))
        }
        Action::Agree { terms_version, payout_address } => {
            mover.accept(*terms_version, *payout_address)
        }
        Action::DepositAddressReady { address } => {
            mover.go(vec![Change::DepositAddress(*address)], Vec::new())
        }
        Action::AgreeCancel => mover.agree_cancel(),
        Action::RevokeCancel => mover.revoke_cancel(),
        Action::SubmitDraft { creative } => {
            mover.go(vec![Change::Creative(creative.clone())], Vec::new())
        }
        Action::RequestRevision { comment } => {
            mover.go(vec![Change::Noted(comment.clone())], Vec::new())
        }
        Action::DisputeQuality { reason } | Action::OpenDispute { reason } => {
            mover.go(vec![Change::Noted(reason.clone())], vec![Message::dispute(reason)])
        }
        Action::Schedule { publish_at } => mover.schedule(*publish_at),
        Action::PublishNow => mover.publish_now(),
        Action::SetChannelAdmins { admins } => mover.set_admins(admins),
        Action::ResolveForOwner { reason } | Action::ResolveForAdvertiser { reason } => {
            mover.go(vec![Change::Noted(reason.clone())], Vec::new())
        }
        Action::Reissue(what) => mover.reissue(*what),
    }
}

struct Mover<'a> {
    deal: &'a Deal,
    command: &'a ActorCommand,
    moment: &'a Moment<'a>,
}

impl Mover<'_> {
    /// The move that the command's name triggers from here, with all that the table wants of it.
    fn go(&self, mut changes: Vec<Change>, mut messages: Vec<Message>) -> Result<Plan, Refused> {
        let name = self.command.action.name();
        let legal = move_by(self.deal.status, name).ok_or_else(|| self.illegal())?;
        let role = match self.command.action.role() {
            Role::Member => roles(self.deal, self.command),
            Role::System => vec![Actor::System],
            Role::Operator => vec![Actor::Operator],
        };
        let both = legal.actors.contains(&Actor::BothParties);
        if !both && !role.iter().any(|role| legal.actors.contains(role)) {
            return Err(self.not_yours(legal.actors));
        }
        // A scheduled post is overdue some time after its own time, not after the scheduling.
        let deadline = if let Action::Schedule { publish_at } = self.command.action {
            let late = self.moment.policy.timeouts.secs(Status::Scheduled).unwrap_or_default();
            Some(publish_at.plus_secs(late))
        } else {
            self.moment.deadline(legal.to)
        };
        changes.push(Change::Deadline(deadline));
        let mut postings = Vec::new();
        match legal.to {
            Status::Cancelled | Status::Refunded => {
                let given = give_back_all(self.deal, self.moment);
                changes.extend(given.changes);
                postings.extend(given.postings);
                messages.extend(given.messages);
            }
            Status::CompletedReleased => {
                let released = release(self.deal, self.moment).ok_or_else(|| {
                    ("NO_PAYOUT_ADDRESS", "the deal has no payout address".to_owned())
                })?;
                changes.extend(released.changes);
                postings.extend(released.postings);
                messages.extend(released.messages);
            }
            Status::Accepted => messages.push(Message::Command(Command::GenerateDepositAddress)),
            Status::Draft
            | Status::OfferPending
            | Status::Negotiating
            | Status::AwaitingPayment
            | Status::Funded
            | Status::CreativeSubmitted
            | Status::CreativeApproved
            | Status::Scheduled
            | Status::Published
            | Status::DeliveryVerifying
            | Status::Disputed
            | Status::Expired => {}
        }
        let text = if let Action::DepositAddressReady { address } = self.command.action {
            // The one who pays must learn where to.
            let (price, to) = (self.deal.terms.price, address.to_friendly(false));
            format!("pay {price} nanotons to {to}")
        } else {
            format!("{name}: the deal is {}", legal.to)
        };
        messages.extend(legal.notices(self.deal, self.command.actor, &text));
        Ok(plan(self.command, legal.to.name(), legal.to, changes, postings, messages))
    }

    /// A fact without a move.
    fn note(&self, word: &'static str, changes: Vec<Change>, messages: Vec<Message>) -> Plan {
        plan(self.command, word, self.deal.status, changes, Vec::new(), messages)
    }

    /// The owner's first counter-offer opens the negotiation; in it, each side may propose.
    fn counter(&self, price: Nano, payout_address: Option<Address>) -> Result<Plan, Refused> {
        let by = self.party()?;
        let mut changes = vec![Change::Terms(Terms {
            version: self.deal.terms.version + 1,
            price,
            proposed_by: by,
        })];
        // The advertiser may agree to these terms next, and then nobody could name the address.
        if by == Party::Owner {
            let address = payout_address.ok_or_else(|| {
                let detail = "the owner's counter_offer names payload.payout_address";
                ("NO_PAYOUT_ADDRESS", detail.to_owned())
            })?;
            changes.push(Change::PayoutAddress(address));
        }
        if self.deal.status != Status::Negotiating {
            return self.go(changes, Vec::new());
        }
        let other = Recipient::User(self.deal.actor(by.other()));
        let text = format!("new terms: {price} nanotons");
        let messages = vec![Message::notify(Kind::TermsProposed, vec![other], text)];
        Ok(self.note("COUNTER_OFFER", changes, messages))
    }

    /// Accept and agree: to the terms as they are, by the side that did not propose them.
    fn accept(&self, terms_version: u32, address: Option<Address>) -> Result<Plan, Refused> {
        let terms = &self.deal.terms;
        let by = self.party()?;
        if move_by(self.deal.status, self.command.action.name()).is_none() {
            return Err(self.illegal());
        }
        if terms_version != terms.version {
            let detail = format!(
                "terms_version is {terms_version}; the terms are in version {}",
                terms.version
            );
            return Err(("TERMS_CONFLICT", detail));
        }
        if terms.proposed_by == by {
            return Err(("OWN_TERMS", "whoever proposed the terms cannot accept them".to_owned()));
        }
        let mut changes = Vec::new();
        match (by, address) {
            (Party::Owner, Some(address)) => changes.push(Change::PayoutAddress(address)),
            (Party::Advertiser, None) if self.deal.payout_address.is_some() => {}
            (Party::Owner, None) | (Party::Advertiser, None) => {
                let detail = "the owner has to name payload.payout_address";
                return Err(("NO_PAYOUT_ADDRESS", detail.to_owned()));
            }
            (Party::Advertiser, Some(_)) => {
                let detail = "only the owner names payload.payout_address";
                return Err(("NOT_ENTITLED", detail.to_owned()));
            }
        }
        self.go(changes, Vec::new())
    }

    /// The first consent is a fact, the other party's makes it a cancellation.
    fn agree_cancel(&self) -> Result<Plan, Refused> {
        let by = self.party()?;
        if move_by(self.deal.status, "agree_cancel").is_none() {
            return Err(self.illegal());
        }
        match self.deal.cancel_agreed_by {
            Some(first) if first != by => self.go(Vec::new(), Vec::new()),
            Some(_) => Err(("ALREADY_AGREED", "the other party has not agreed yet".to_owned())),
            None => {
                let other = Recipient::User(self.deal.actor(by.other()));
                let text = "the other party agrees to cancel; agree_cancel makes it so";
                let messages = vec![Message::notify(Kind::CancelAgreed, vec![other], text)];
                let changes = vec![Change::CancelAgreed(Some(by))];
                Ok(self.note("CANCEL_AGREED", changes, messages))
            }
        }
    }

    fn revoke_cancel(&self) -> Result<Plan, Refused> {
        let by = self.party()?;
        if self.deal.cancel_agreed_by != Some(by) {
            return Err(("NOT_AGREED", "there is no consent of yours to take back".to_owned()));
        }
        Ok(self.note("CANCEL_REVOKED", vec![Change::CancelAgreed(None)], Vec::new()))
    }

    fn schedule(&self, publish_at: domain::time::Timestamp) -> Result<Plan, Refused> {
        if publish_at < self.moment.now || publish_at > self.moment.now.plus_secs(MAX_AHEAD_SECS) {
            let detail = "payload.publish_at lies in the past, or more than a year ahead";
            return Err(("IMPOSSIBLE_TIME", detail.to_owned()));
        }
        let (changes, messages) = self.publication(publish_at)?;
        self.go(changes, messages)
    }

    /// The intent is recorded; the move comes with the publisher's report.
    fn publish_now(&self) -> Result<Plan, Refused> {
        if self.deal.status != Status::CreativeApproved {
            return Err(self.illegal());
        }
        let entitled = [Actor::Owner, Actor::Admin];
        if !roles(self.deal, self.command).iter().any(|role| entitled.contains(role)) {
            return Err(self.not_yours(&entitled));
        }
        let (changes, messages) = self.publication(self.moment.now)?;
        Ok(self.note("PUBLICATION_COMMANDED", changes, messages))
    }

    /// A deal is published at most once.
    fn publication(
        &self,
        publish_at: domain::time::Timestamp,
    ) -> Result<(Vec<Change>, Vec<Message>), Refused> {
        if self.deal.publish_at.is_some() {
            let detail = "the publication was commanded already";
            return Err(("ALREADY_COMMANDED", detail.to_owned()));
        }
        let creative = self.deal.creative.clone().unwrap_or_default();
        let changes = vec![Change::PublicationCommanded { publish_at }];
        Ok((changes, vec![Message::Command(Command::PublishPost { publish_at, creative })]))
    }

    fn set_admins(&self, admins: &[ActorId]) -> Result<Plan, Refused> {
        if self.party()? != Party::Owner {
            return Err(self.not_yours(&[Actor::Owner]));
        }
        if self.deal.status.is_final() {
            return Err(self.illegal());
        }
        if admins.len() > MAX_ADMINS || admins.contains(&self.deal.advertiser) {
            let detail = format!("at most {MAX_ADMINS} admins, and not the advertiser");
            return Err(("IMPOSSIBLE_ADMINS", detail));
        }
        Ok(self.note("CHANNEL_ADMINS_SET", vec![Change::Admins(admins.to_vec())], Vec::new()))
    }

    /// Issues a worker's command once more, under the same id, and gives it new time.
    fn reissue(&self, what: Reissued) -> Result<Plan, Refused> {
        let nothing = |detail: String| ("NOTHING_TO_REISSUE", detail);
        // Only what is issued again gets new time: whatever else is overdue stays overdue.
        let (command, alone) = match what {
            Reissued::Payout => {
                let to = self.deal.payout_address.filter(|_| self.deal.payable.is_positive());
                let to = to.ok_or_else(|| nothing("no payout is open".to_owned()))?;
                let alone = self.deal.refundable == Nano::ZERO;
                (payout_command(self.deal, self.deal.payable, to), alone)
            }
            Reissued::Refund(number) => {
                let mut open = self.deal.refunds.iter().filter(|order| order.settled.is_none());
                let order = open.find(|order| order.number == number);
                let order = order.ok_or_else(|| nothing(format!("refund {number} is not open")))?;
                let others =
                    self.deal.payable.is_positive() || self.deal.refundable != order.amount;
                (order.command(), !others)
            }
        };
        let due = self.moment.now.plus_secs(self.moment.policy.settlement_due_secs);
        let changes = if alone { vec![Change::SettlementDue(Some(due))] } else { Vec::new() };
        Ok(self.note("COMMAND_REISSUED", changes, vec![Message::Command(command)]))
    }

    fn party(&self) -> Result<Party, Refused> {
        let party = self.command.actor.and_then(|actor| self.deal.party(actor));
        party.ok_or_else(|| self.not_yours(&[Actor::Advertiser, Actor::Owner]))
    }

    fn illegal(&self) -> Refused {
        let name = self.command.action.name();
        ("ILLEGAL_MOVE", format!("{name} does not apply to a deal that is {}", self.deal.status))
    }

    fn not_yours(&self, actors: &[Actor]) -> Refused {
        let names = actors.iter().map(|actor| actor.name()).collect::<Vec<_>>().join(" or ");
        ("NOT_ENTITLED", format!("{} is for: {names}", self.command.action.name()))
    }
}

fn plan(
    command: &ActorCommand,
    event_type: &'static str,
    to: Status,
    changes: Vec<Change>,
    postings: Vec<Posting>,
    messages: Vec<Message>,
) -> Plan {
    Plan {
        key: command.key(),
        fingerprint: command.fingerprint,
        event_type: ActorCommand::EVENT_TYPE,
        deal: command.deal,
        steps: vec![Step { event_type, to, actor: command.actor, changes, postings }],
        messages,
    }
}
