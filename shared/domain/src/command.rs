//! What actors ask for, as values. Who may ask is decided against the deal; who the actor is, the
//! marketplace's backend vouches for.

use crate::ids::{ActorId, ChannelId, DealId};
use crate::key::{Fingerprint, Key};
use crate::money::Nano;
use crate::time::Timestamp;
use crate::ton::Address;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorCommand {
    pub id: String,
    pub deal: DealId,
    /// Absent for the system.
    pub actor: Option<ActorId>,
    /// The version that the actor saw. The system does not look.
    pub expected_version: Option<u64>,
    pub action: Action,
    /// Of the whole body.
    pub fingerprint: Fingerprint,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Create { owner: ActorId, channel: ChannelId, price: Nano },
    SubmitOffer,
    Cancel,
    CounterOffer { price: Nano, payout_address: Option<Address> },
    Accept { terms_version: u32, payout_address: Address },
    Reject,
    Withdraw,
    Agree { terms_version: u32, payout_address: Option<Address> },
    DepositAddressReady { address: Address },
    AgreeCancel,
    RevokeCancel,
    SubmitDraft { creative: String },
    Approve,
    RequestRevision { comment: String },
    DisputeQuality { reason: String },
    Schedule { publish_at: Timestamp },
    PublishNow,
    SetChannelAdmins { admins: Vec<ActorId> },
    ResolveForOwner { reason: String },
    ResolveForAdvertiser { reason: String },
    OpenDispute { reason: String },
    Reissue(Reissued),
}

/// A command to a worker that an operator issues once more, under its own id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reissued {
    Payout,
    Refund(u32),
}

/// Who may issue a command, by the way it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A party of the deal, or an admin of the channel.
    Member,
    /// A worker, by its signature.
    System,
    /// By a route of their own.
    Operator,
}

/// The code of a refusal that is no answer: whoever sent this has no business with the deal.
pub const NOT_AUTHORISED: &str = "NOT_AUTHORISED";

impl ActorCommand {
    pub const EVENT_TYPE: &'static str = "COMMAND";

    pub fn key(&self) -> Key {
        Key::command(&self.id)
    }
}

impl Action {
    /// As it stands in the body's `command`, and in the table of moves.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::SubmitOffer => "submit_offer",
            Self::Cancel => "cancel",
            Self::CounterOffer { .. } => "counter_offer",
            Self::Accept { .. } => "accept",
            Self::Reject => "reject",
            Self::Withdraw => "withdraw",
            Self::Agree { .. } => "agree",
            Self::DepositAddressReady { .. } => "deposit_address_ready",
            Self::AgreeCancel => "agree_cancel",
            Self::RevokeCancel => "revoke_cancel",
            Self::SubmitDraft { .. } => "submit_draft",
            Self::Approve => "approve",
            Self::RequestRevision { .. } => "request_revision",
            Self::DisputeQuality { .. } => "dispute_quality",
            Self::Schedule { .. } => "schedule",
            Self::PublishNow => "publish_now",
            Self::SetChannelAdmins { .. } => "set_channel_admins",
            Self::ResolveForOwner { .. } => "resolve_for_owner",
            Self::ResolveForAdvertiser { .. } => "resolve_for_advertiser",
            Self::OpenDispute { .. } => "open_dispute",
            Self::Reissue(_) => "reissue",
        }
    }

    pub const fn role(&self) -> Role {
        match self {
            Self::DepositAddressReady { .. } => Role::System,
            Self::ResolveForOwner { .. }
            | Self::ResolveForAdvertiser { .. }
            | Self::OpenDispute { .. }
            | Self::Reissue(_) => Role::Operator,
            Self::Create { .. }
            | Self::SubmitOffer
            | Self::Cancel
            | Self::CounterOffer { .. }
            | Self::Accept { .. }
            | Self::Reject
            | Self::Withdraw
            | Self::Agree { .. }
            | Self::AgreeCancel
            | Self::RevokeCancel
            | Self::SubmitDraft { .. }
            | Self::Approve
            | Self::RequestRevision { .. }
            | Self::DisputeQuality { .. }
            | Self::Schedule { .. }
            | Self::PublishNow
            | Self::SetChannelAdmins { .. } => Role::Member,
        }
    }
}
