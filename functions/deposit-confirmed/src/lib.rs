//! Decides what a confirmed deposit does to its deal. Every deposit that is really ours is booked:
//! it funds the deal, waits for the rest of the price, goes back to its sender, or, where it is too
//! small or one too many, rests in SUSPENSE.

// A new state must make every decision that does not know it fail to compile.
#![warn(clippy::wildcard_enum_match_arm)]

use domain::deal::{Deal, Deposit, MAX_DEPOSITS};
use domain::decision::{Decision, Wait};
use domain::fact::Change;
use domain::message::Message;
use domain::money::{Account, Nano, Posting, transfer};
use domain::plan::{Plan, Step};
use domain::policy::Moment;
use domain::refund::{give_back, suspended};
use domain::result::DepositConfirmed;
use domain::state::Status;

/// As many deposits as a deal may have before small ones no longer count.
const MAX_SMALL_PARTS: usize = MAX_DEPOSITS / 2;

pub fn decide(deal: &Deal, deposit: &DepositConfirmed, moment: &Moment<'_>) -> Decision {
    match deal.status {
        Status::Published => {
            return Decision::refuse_critical("CORRUPT_DEAL", "the deal row rests in PUBLISHED");
        }
        Status::Draft | Status::OfferPending | Status::Negotiating | Status::Accepted => {
            return Decision::not_ready(
                "DEAL_NOT_AWAITING_PAYMENT",
                format!("the deal is {}", deal.status),
                Wait::Backoff,
            );
        }
        Status::AwaitingPayment
        | Status::Funded
        | Status::CreativeSubmitted
        | Status::CreativeApproved
        | Status::Scheduled
        | Status::DeliveryVerifying
        | Status::CompletedReleased
        | Status::Disputed
        | Status::Cancelled
        | Status::Refunded
        | Status::Expired => {}
    }
    if deal.deposit_address != Some(deposit.deposit_address) {
        return Decision::refuse_critical(
            "OTHER_DEPOSIT_ADDRESS",
            "payload.deposit_address is not the address of this deal",
        );
    }
    let required = moment.policy.required_confirmations;
    if deposit.confirmations < required {
        return Decision::not_ready(
            "TOO_FEW_CONFIRMATIONS",
            format!("{} of {required} confirmations", deposit.confirmations),
            Wait::AnotherReport,
        );
    }
    // Any sum that an i64 cannot hold is above all TON there is.
    let Some(paid) = deal.escrow.checked_add(deposit.amount) else {
        return Decision::refuse_critical("IMPOSSIBLE_AMOUNT", "payload.amount_nano overflows");
    };

    let funds = deal.status == Status::AwaitingPayment && paid >= deal.terms.price;
    // Small parts of a price count, but only so many: they must not fill the row.
    let counts = deal.status == Status::AwaitingPayment && deal.deposits.len() < MAX_SMALL_PARTS;
    let dust = deposit.amount < moment.policy.min_refund && !funds && !counts;
    if dust || deal.deposits.len() >= MAX_DEPOSITS {
        return Decision::Apply(suspend(deal, deposit, dust));
    }
    Decision::Apply(if funds {
        fund(deal, deposit, paid, moment)
    } else if deal.status == Status::AwaitingPayment {
        wait_for_the_rest(deal, deposit)
    } else {
        send_back(deal, deposit, moment)
    })
}

fn fund(deal: &Deal, deposit: &DepositConfirmed, paid: Nano, moment: &Moment<'_>) -> Plan {
    let surplus = paid.checked_sub(deal.terms.price).expect("what is paid reaches the price");
    let given = give_back(deal, deposit.tx, deposit.from, surplus, moment);
    let mut changes = vec![deposited(deposit)];
    changes.extend(given.changes);
    changes.push(Change::Deadline(moment.deadline(Status::Funded)));
    let mut postings = credit(deal, deposit);
    postings.extend(given.postings);
    plan(deal, deposit, Status::Funded, "FUNDED", changes, postings, given.messages)
}

fn wait_for_the_rest(deal: &Deal, deposit: &DepositConfirmed) -> Plan {
    let changes = vec![deposited(deposit)];
    let postings = credit(deal, deposit);
    plan(deal, deposit, deal.status, "DEPOSIT_PARTIAL", changes, postings, Vec::new())
}

fn send_back(deal: &Deal, deposit: &DepositConfirmed, moment: &Moment<'_>) -> Plan {
    let given = give_back(deal, deposit.tx, deposit.from, deposit.amount, moment);
    let mut changes = vec![deposited(deposit)];
    changes.extend(given.changes);
    let mut postings = credit(deal, deposit);
    postings.extend(given.postings);
    plan(deal, deposit, deal.status, "DEPOSIT_RETURNED", changes, postings, given.messages)
}

/// Books a deposit past the deal: dust must not grow the deal row, and a row has an end.
fn suspend(deal: &Deal, deposit: &DepositConfirmed, dust: bool) -> Plan {
    let postings = transfer(Account::ExternalTon, Account::Suspense, deposit.amount).to_vec();
    let messages: Vec<Message> = if dust {
        Vec::new()
    } else {
        vec![suspended(deposit.tx, deposit.amount, "the deal has too many deposits")]
    };
    // The deal does not keep it; the journal has to say whose it is.
    let whose = format!("{} nanotons of {} from {}", deposit.amount, deposit.tx, deposit.from);
    let changes = vec![Change::Noted(whose)];
    plan(deal, deposit, deal.status, "DEPOSIT_SUSPENDED", changes, postings, messages)
}

fn deposited(deposit: &DepositConfirmed) -> Change {
    Change::Deposited(Deposit {
        tx: deposit.tx,
        sender: deposit.from,
        amount: deposit.amount,
        returned: Nano::ZERO,
    })
}

fn credit(deal: &Deal, deposit: &DepositConfirmed) -> Vec<Posting> {
    transfer(Account::ExternalTon, Account::Escrow(deal.id), deposit.amount).to_vec()
}

fn plan(
    deal: &Deal,
    deposit: &DepositConfirmed,
    to: Status,
    event_type: &'static str,
    changes: Vec<Change>,
    postings: Vec<Posting>,
    messages: Vec<Message>,
) -> Plan {
    Plan {
        key: deposit.key(),
        fingerprint: deposit.fingerprint(),
        event_type: DepositConfirmed::EVENT_TYPE,
        deal: deal.id,
        steps: vec![Step { event_type, to, actor: None, changes, postings }],
        messages,
    }
}

#[cfg(test)]
mod tests {
    use domain::deal::{Party, RefundOrder, Terms};
    use domain::ids::{ActorId, ChannelId, DealId};
    use domain::money::BasisPoints;
    use domain::plan::check_deal;
    use domain::policy::Policy;
    use domain::time::Timestamp;
    use domain::ton::{Address, TxHash};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);
    const TON: i64 = 1_000_000_000;

    fn address(number: u8) -> Address {
        Address::from_parts(0, [number; 32])
    }

    /// A deal of 1 TON; where it is paid for, 1 TON is in escrow.
    fn deal(status: Status) -> Deal {
        let paid = !status.is_final() && status >= Status::Funded;
        let before = Deposit {
            tx: TxHash::from_bytes([0xee; 32]),
            sender: address(4),
            amount: Nano::new(TON),
            returned: Nano::ZERO,
        };
        Deal {
            id: DealId::from_u128(7),
            status,
            version: 4,
            advertiser: ActorId(1),
            owner: ActorId(2),
            channel: ChannelId(3),
            commission: BasisPoints::DEFAULT,
            terms: Terms { version: 1, price: Nano::new(TON), proposed_by: Party::Advertiser },
            deposit_address: Some(address(9)),
            payout_address: Some(address(8)),
            escrow: if paid { Nano::new(TON) } else { Nano::ZERO },
            payable: Nano::ZERO,
            refundable: Nano::ZERO,
            deposits: if paid { vec![before] } else { Vec::new() },
            refunds: Vec::new(),
            payout_tx: None,
            admins: Vec::new(),
            cancel_agreed_by: None,
            creative: None,
            publish_at: None,
            publication: None,
            publication_failures: 0,
            deadline_at: Some(NOW),
            settlement_due_at: None,
            created_at: NOW,
            updated_at: NOW,
            outbox_position: String::new(),
        }
    }

    fn deposit(amount: i64) -> DepositConfirmed {
        DepositConfirmed {
            deal: DealId::from_u128(7),
            tx: TxHash::from_bytes([1; 32]),
            amount: Nano::new(amount),
            confirmations: 3,
            from: address(5),
            deposit_address: address(9),
        }
    }

    fn decided(deal: &Deal, deposit: &DepositConfirmed) -> Decision {
        let policy = Policy::default();
        decide(deal, deposit, &Moment { now: NOW, recorded_at: NOW, policy: &policy })
    }

    /// The deal after the plan, which must be sound, and the word of its fact.
    fn applied(deal: &Deal, deposit: &DepositConfirmed) -> (Deal, &'static str, usize) {
        let Decision::Apply(plan) = decided(deal, deposit) else {
            panic!("{:?}", decided(deal, deposit))
        };
        let messages = plan.messages.len();
        let checked = plan.check(Some(deal), NOW).expect("the plan is sound");
        assert_eq!(check_deal(&checked.after), Ok(()));
        (checked.after, checked.facts[0].event_type, messages)
    }

    #[test]
    fn every_state_has_its_answer() {
        for status in Status::ALL {
            let before = deal(status);
            match (status, decided(&before, &deposit(TON))) {
                (
                    Status::Draft | Status::OfferPending | Status::Negotiating | Status::Accepted,
                    Decision::NotReady(not_ready),
                ) => assert_eq!(not_ready.wait, Wait::Backoff),
                (Status::Published, Decision::Refuse(refusal)) => {
                    assert_eq!(refusal.code, "CORRUPT_DEAL");
                    assert!(refusal.critical);
                }
                (Status::AwaitingPayment, Decision::Apply(_)) => {
                    let (after, word, messages) = applied(&before, &deposit(TON));
                    assert_eq!((after.status, word, messages), (Status::Funded, "FUNDED", 0));
                    assert_eq!(after.escrow, Nano::new(TON));
                    assert_eq!(after.deadline_at, Some(NOW.plus_secs(72 * 3600)));
                }
                (
                    Status::Funded
                    | Status::CreativeSubmitted
                    | Status::CreativeApproved
                    | Status::Scheduled
                    | Status::DeliveryVerifying
                    | Status::CompletedReleased
                    | Status::Disputed
                    | Status::Cancelled
                    | Status::Refunded
                    | Status::Expired,
                    Decision::Apply(_),
                ) => {
                    let (after, word, messages) = applied(&before, &deposit(TON));
                    assert_eq!((after.status, word, messages), (status, "DEPOSIT_RETURNED", 1));
                    assert_eq!((after.escrow, after.refundable), (before.escrow, Nano::new(TON)));
                    assert_eq!(after.refunds[0].to, address(5));
                    assert_eq!(after.deadline_at, before.deadline_at);
                    assert_eq!(after.settlement_due_at, Some(NOW.plus_secs(6 * 3600)));
                }
                (_, other) => panic!("{status}: {other:?}"),
            }
        }
    }

    #[test]
    fn partial_deposits_add_up_and_the_surplus_goes_back() {
        let (after, word, _) = applied(&deal(Status::AwaitingPayment), &deposit(TON - 1));
        assert_eq!((after.status, word), (Status::AwaitingPayment, "DEPOSIT_PARTIAL"));
        let mut second = deposit(TON);
        second.tx = TxHash::from_bytes([2; 32]);
        let (after, word, messages) = applied(&after, &second);
        assert_eq!((after.status, word, messages), (Status::Funded, "FUNDED", 1));
        assert_eq!((after.escrow, after.refundable), (Nano::new(TON), Nano::new(TON - 1)));
    }

    #[test]
    fn dust_completes_a_price_but_is_never_refunded() {
        let (almost, _, _) = applied(&deal(Status::AwaitingPayment), &deposit(TON - 1));
        let mut dust = deposit(2);
        dust.tx = TxHash::from_bytes([2; 32]);
        let (after, word, messages) = applied(&almost, &dust);
        assert_eq!((after.status, word, messages), (Status::Funded, "FUNDED", 0));
        assert_eq!((after.escrow, after.refundable), (Nano::new(TON), Nano::ZERO));

        let (after, word, _) = applied(&deal(Status::AwaitingPayment), &deposit(5));
        assert_eq!((word, after.escrow), ("DEPOSIT_PARTIAL", Nano::new(5)));
        let mut crowded = deal(Status::AwaitingPayment);
        for number in 0..50 {
            let mut part = deposit(1);
            part.tx = TxHash::from_bytes([100 + number; 32]);
            crowded = applied(&crowded, &part).0;
        }
        assert_eq!(applied(&crowded, &deposit(1)).1, "DEPOSIT_SUSPENDED");
        assert_eq!(applied(&crowded, &deposit(20_000_000)).1, "DEPOSIT_PARTIAL");

        for status in [Status::Funded, Status::Cancelled] {
            let (after, word, messages) = applied(&deal(status), &deposit(19_999_999));
            assert_eq!((word, messages), ("DEPOSIT_SUSPENDED", 0), "{status}");
            assert_eq!(after.deposits, deal(status).deposits);
        }
        let (_, word, _) = applied(&deal(Status::Cancelled), &deposit(20_000_000));
        assert_eq!(word, "DEPOSIT_RETURNED");
    }

    #[test]
    fn a_full_row_sends_further_deposits_to_suspense_with_an_alarm() {
        let mut full = deal(Status::AwaitingPayment);
        for number in 0..100 {
            let mut part = deposit(20_000_000 / 4 * 4);
            part.tx = TxHash::from_bytes([100 + number; 32]);
            full.terms.price = Nano::new(100 * TON);
            full = applied(&full, &part).0;
        }
        let (after, word, messages) = applied(&full, &deposit(TON));
        assert_eq!((word, messages), ("DEPOSIT_SUSPENDED", 1));
        assert_eq!(after.deposits.len(), 100);

        let mut full = deal(Status::Cancelled);
        full.refunds = (1..=100)
            .map(|number| RefundOrder {
                number,
                amount: Nano::new(1),
                to: address(5),
                deposit: TxHash::from_bytes([7; 32]),
                settled: Some(TxHash::from_bytes([8; 32])),
            })
            .collect();
        let (after, word, messages) = applied(&full, &deposit(TON));
        assert_eq!((word, messages), ("DEPOSIT_RETURNED", 1));
        assert_eq!((after.refunds.len(), after.refundable), (100, Nano::ZERO));
    }

    #[test]
    fn another_address_is_refused_and_too_few_confirmations_wait() {
        let mut elsewhere = deposit(TON);
        elsewhere.deposit_address = address(1);
        for status in [Status::AwaitingPayment, Status::Cancelled, Status::Disputed] {
            let Decision::Refuse(refusal) = decided(&deal(status), &elsewhere) else { panic!() };
            assert_eq!((refusal.code, refusal.critical), ("OTHER_DEPOSIT_ADDRESS", true));
        }
        let mut unaddressed = deal(Status::Cancelled);
        unaddressed.deposit_address = None;
        assert!(matches!(decided(&unaddressed, &deposit(TON)), Decision::Refuse(_)));

        let mut young = deposit(TON);
        young.confirmations = 2;
        let Decision::NotReady(wait) = decided(&deal(Status::AwaitingPayment), &young) else {
            panic!()
        };
        assert_eq!((wait.code, wait.wait), ("TOO_FEW_CONFIRMATIONS", Wait::AnotherReport));
    }

    #[test]
    fn a_sum_that_no_i64_holds_is_refused() {
        let (rich, _, _) = applied(&deal(Status::AwaitingPayment), &deposit(TON - 1));
        let mut huge = deposit(i64::MAX);
        huge.tx = TxHash::from_bytes([2; 32]);
        let Decision::Refuse(refusal) = decided(&rich, &huge) else { panic!() };
        assert_eq!(refusal.code, "IMPOSSIBLE_AMOUNT");
    }
}
