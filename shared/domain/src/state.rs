//! The 16 states of a deal and the one table of legal moves. The plan checker, the diagram and the
//! docs all read this table: a move that is not in it does not exist.

use std::fmt;

use crate::deal::Deal;
use crate::ids::ActorId;
use crate::message::{Kind, Message, Recipient};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    Draft,
    OfferPending,
    Negotiating,
    Accepted,
    AwaitingPayment,
    Funded,
    CreativeSubmitted,
    CreativeApproved,
    Scheduled,
    Published,
    DeliveryVerifying,
    CompletedReleased,
    Disputed,
    Cancelled,
    Refunded,
    Expired,
}

impl Status {
    pub const ALL: [Self; 16] = [
        Self::Draft,
        Self::OfferPending,
        Self::Negotiating,
        Self::Accepted,
        Self::AwaitingPayment,
        Self::Funded,
        Self::CreativeSubmitted,
        Self::CreativeApproved,
        Self::Scheduled,
        Self::Published,
        Self::DeliveryVerifying,
        Self::CompletedReleased,
        Self::Disputed,
        Self::Cancelled,
        Self::Refunded,
        Self::Expired,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Draft => "DRAFT",
            Self::OfferPending => "OFFER_PENDING",
            Self::Negotiating => "NEGOTIATING",
            Self::Accepted => "ACCEPTED",
            Self::AwaitingPayment => "AWAITING_PAYMENT",
            Self::Funded => "FUNDED",
            Self::CreativeSubmitted => "CREATIVE_SUBMITTED",
            Self::CreativeApproved => "CREATIVE_APPROVED",
            Self::Scheduled => "SCHEDULED",
            Self::Published => "PUBLISHED",
            Self::DeliveryVerifying => "DELIVERY_VERIFYING",
            Self::CompletedReleased => "COMPLETED_RELEASED",
            Self::Disputed => "DISPUTED",
            Self::Cancelled => "CANCELLED",
            Self::Refunded => "REFUNDED",
            Self::Expired => "EXPIRED",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == text)
    }

    /// Nothing leads out of these.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::CompletedReleased | Self::Cancelled | Self::Refunded | Self::Expired)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Who may trigger a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    Advertiser,
    Owner,
    /// A channel admin whom the owner named.
    Admin,
    /// Both parties, one after the other.
    BothParties,
    Operator,
    /// A worker's signed report, or a timeout.
    System,
}

impl Actor {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Advertiser => "Advertiser",
            Self::Owner => "Owner",
            Self::Admin => "Admin",
            Self::BothParties => "Both parties",
            Self::Operator => "Operator",
            Self::System => "System",
        }
    }
}

/// What a move brings about besides its `deal.events` message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    NotifyOwner,
    NotifyAdvertiser,
    NotifyBoth,
    NotifyOtherParty,
    CommandDepositAddress,
    CreditEscrow,
    /// Refunds the whole escrow balance; nothing where there is none.
    OrderRefund,
    FreezeEscrow,
    CommandPublication,
    CommandVerification,
    ReleaseEscrow,
    CommandPayout,
}

impl Effect {
    pub const fn describe(self) -> &'static str {
        match self {
            Self::NotifyOwner => "notify the owner",
            Self::NotifyAdvertiser => "notify the advertiser",
            Self::NotifyBoth => "notify both parties",
            Self::NotifyOtherParty => "notify the other party",
            Self::CommandDepositAddress => "command a deposit address",
            Self::CreditEscrow => "credit the escrow",
            Self::OrderRefund => "order the refund of what is in escrow",
            Self::FreezeEscrow => "freeze the escrow",
            Self::CommandPublication => "command the publication",
            Self::CommandVerification => "command 24 h of verification",
            Self::ReleaseEscrow => "release the escrow, deduct the commission",
            Self::CommandPayout => "command the payout",
        }
    }
}

pub struct Move {
    pub from: Status,
    pub to: Status,
    pub trigger: &'static str,
    pub actors: &'static [Actor],
    pub effects: &'static [Effect],
}

const fn step(
    from: Status,
    to: Status,
    trigger: &'static str,
    actors: &'static [Actor],
    effects: &'static [Effect],
) -> Move {
    Move { from, to, trigger, actors, effects }
}

use Actor::{Admin, Advertiser, BothParties, Operator, Owner, System};
use Effect::{
    CommandDepositAddress, CommandPayout, CommandPublication, CommandVerification, CreditEscrow,
    FreezeEscrow, NotifyAdvertiser, NotifyBoth, NotifyOtherParty, NotifyOwner, OrderRefund,
    ReleaseEscrow,
};
use Status::{
    Accepted, AwaitingPayment, Cancelled, CompletedReleased, CreativeApproved, CreativeSubmitted,
    DeliveryVerifying, Disputed, Draft, Expired, Funded, Negotiating, OfferPending, Published,
    Refunded, Scheduled,
};

/// Document 4 and the moves that the design adds to it: CREATIVE_SUBMITTED → EXPIRED, and DISPUTED
/// from CREATIVE_APPROVED and SCHEDULED, so that no escrow is without a way out.
#[rustfmt::skip]
pub const MOVES: &[Move] = &[
    step(Draft, OfferPending, "submit_offer", &[Advertiser], &[NotifyOwner]),
    step(Draft, Cancelled, "cancel", &[Advertiser], &[]),
    step(OfferPending, Negotiating, "counter_offer", &[Owner], &[NotifyAdvertiser]),
    step(OfferPending, Accepted, "accept", &[Owner], &[CommandDepositAddress, NotifyAdvertiser]),
    step(OfferPending, Cancelled, "reject", &[Owner], &[NotifyOtherParty]),
    step(OfferPending, Cancelled, "withdraw", &[Advertiser], &[NotifyOtherParty]),
    step(OfferPending, Expired, "timeout", &[System], &[NotifyBoth]),
    step(Negotiating, Accepted, "agree", &[Advertiser, Owner], &[CommandDepositAddress]),
    step(Negotiating, Cancelled, "cancel", &[Advertiser, Owner], &[NotifyOtherParty]),
    step(Negotiating, Expired, "timeout", &[System], &[NotifyBoth]),
    step(Accepted, AwaitingPayment, "deposit_address_ready", &[System], &[NotifyAdvertiser]),
    step(Accepted, Cancelled, "cancel", &[Advertiser, Owner], &[NotifyOtherParty]),
    step(AwaitingPayment, Funded, "deposit_confirmed", &[System], &[CreditEscrow]),
    step(AwaitingPayment, Cancelled, "cancel", &[Advertiser], &[NotifyOwner, OrderRefund]),
    step(AwaitingPayment, Expired, "timeout", &[System], &[NotifyBoth, OrderRefund]),
    step(Funded, CreativeSubmitted, "submit_draft", &[Owner, Admin], &[NotifyAdvertiser]),
    step(Funded, Cancelled, "agree_cancel", &[BothParties], &[OrderRefund]),
    step(Funded, Expired, "timeout", &[System], &[OrderRefund]),
    step(CreativeSubmitted, CreativeApproved, "approve", &[Advertiser], &[NotifyOwner]),
    step(CreativeSubmitted, Funded, "request_revision", &[Advertiser], &[NotifyOwner]),
    step(CreativeSubmitted, Disputed, "dispute_quality", &[Advertiser], &[FreezeEscrow]),
    step(CreativeSubmitted, Expired, "timeout", &[System], &[OrderRefund]),
    step(CreativeApproved, Scheduled, "schedule", &[Owner, Admin], &[CommandPublication]),
    step(CreativeApproved, Published, "publication_succeeded", &[System], &[]),
    step(CreativeApproved, Disputed, "open_dispute", &[Operator, System], &[FreezeEscrow, NotifyBoth]),
    step(Scheduled, Published, "publication_succeeded", &[System], &[]),
    step(Scheduled, Disputed, "open_dispute", &[Operator, System], &[FreezeEscrow, NotifyBoth]),
    step(Published, DeliveryVerifying, "verification_started", &[System], &[CommandVerification]),
    step(DeliveryVerifying, CompletedReleased, "verification_passed", &[System], &[ReleaseEscrow, CommandPayout]),
    step(DeliveryVerifying, Disputed, "verification_failed", &[System], &[FreezeEscrow, NotifyBoth]),
    step(Disputed, CompletedReleased, "resolve_for_owner", &[Operator], &[ReleaseEscrow, CommandPayout]),
    step(Disputed, Refunded, "resolve_for_advertiser", &[Operator], &[OrderRefund]),
];

/// The moves between two states; empty where none is legal.
pub fn moves(from: Status, to: Status) -> impl Iterator<Item = &'static Move> {
    MOVES.iter().filter(move |step| step.from == from && step.to == to)
}

/// The move of one trigger, if it is legal from here.
pub fn move_by(from: Status, trigger: &str) -> Option<&'static Move> {
    MOVES.iter().find(|step| step.from == from && step.trigger == trigger)
}

impl Move {
    /// The notifications that this move owes, as one message.
    pub fn notices(&self, deal: &Deal, actor: Option<ActorId>, text: &str) -> Option<Message> {
        let other =
            || actor.and_then(|actor| deal.party(actor)).map(|party| deal.actor(party.other()));
        let told = self.effects.iter().flat_map(|effect| match effect {
            NotifyOwner => vec![deal.owner],
            NotifyAdvertiser => vec![deal.advertiser],
            NotifyBoth => vec![deal.advertiser, deal.owner],
            NotifyOtherParty => other().into_iter().collect(),
            CommandDepositAddress
            | CreditEscrow
            | OrderRefund
            | FreezeEscrow
            | CommandPublication
            | CommandVerification
            | ReleaseEscrow
            | CommandPayout => vec![],
        });
        let recipients: Vec<Recipient> = told.map(Recipient::User).collect();
        let kind = Kind::DealMoved { from: self.from, to: self.to };
        (!recipients.is_empty()).then(|| Message::notify(kind, recipients, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for status in Status::ALL {
            assert_eq!(Status::parse(status.name()), Some(status));
        }
        assert_eq!(Status::parse("COMPLETED"), None);
    }

    #[test]
    fn final_states_have_no_way_out_and_every_other_state_has_one() {
        for status in Status::ALL {
            let ways_out = MOVES.iter().filter(|step| step.from == status).count();
            assert_eq!(ways_out == 0, status.is_final(), "{status}");
        }
    }

    #[test]
    fn every_state_but_the_first_can_be_reached_from_draft() {
        let mut reached = vec![Status::Draft];
        let mut next = 0;
        while next < reached.len() {
            let from = reached[next];
            for step in MOVES.iter().filter(|step| step.from == from) {
                if !reached.contains(&step.to) {
                    reached.push(step.to);
                }
            }
            next += 1;
        }
        assert_eq!(reached.len(), Status::ALL.len());
    }

    #[test]
    fn a_cancelled_or_expired_deal_that_could_hold_money_refunds_it() {
        let can_hold_money = [Status::AwaitingPayment, Status::Funded, Status::CreativeSubmitted];
        for step in MOVES {
            let closes = matches!(step.to, Status::Cancelled | Status::Expired | Status::Refunded);
            if closes && (can_hold_money.contains(&step.from) || step.from == Status::Disputed) {
                assert!(step.effects.contains(&Effect::OrderRefund), "{} → {}", step.from, step.to);
            }
        }
    }
}
