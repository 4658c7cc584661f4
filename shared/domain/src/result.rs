//! What workers report, as values: parsed, checked, with every identifier in its one canonical form.

use crate::ids::DealId;
use crate::key::{Fingerprint, Key};
use crate::money::Nano;
use crate::ton::{Address, TxHash};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepositConfirmed {
    pub deal: DealId,
    pub tx: TxHash,
    /// Positive.
    pub amount: Nano,
    pub confirmations: u32,
    pub from: Address,
    pub deposit_address: Address,
}

impl DepositConfirmed {
    pub const EVENT_TYPE: &'static str = "DEPOSIT_CONFIRMED";

    /// The hash alone: claimed for a second deal it is a conflict.
    pub fn key(&self) -> Key {
        Key::deposit(self.tx)
    }

    /// Confirmations are left out: the same deposit seen one block later is the same deposit.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&[
            ("deal", &self.deal.to_string()),
            ("tx", &self.tx.to_string()),
            ("amount", &self.amount.to_string()),
            ("from", &self.from.to_string()),
            ("deposit_address", &self.deposit_address.to_string()),
        ])
    }
}
