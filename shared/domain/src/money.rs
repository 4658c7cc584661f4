//! Nanotons, accounts and postings. Every fact's postings sum to zero; no account of a deal ever
//! goes below zero. No floats, no silent overflow.

use std::fmt;

use crate::ids::DealId;

/// One TON.
pub const NANO_PER_TON: i64 = 1_000_000_000;

/// A signed amount of nanotons. Amounts that a worker reports are positive by the time they are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nano(i64);

impl Nano {
    pub const ZERO: Self = Self(0);

    pub const fn new(nano: i64) -> Self {
        Self(nano)
    }

    pub const fn get(self) -> i64 {
        self.0
    }

    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }

    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }
}

impl std::ops::Neg for Nano {
    type Output = Self;

    fn neg(self) -> Self {
        Self(self.0.checked_neg().expect("amounts are positive before they are negated"))
    }
}

impl fmt::Display for Nano {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The commission in basis points of the price.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BasisPoints(u16);

impl BasisPoints {
    pub const DEFAULT: Self = Self(1000);

    /// At most the whole price.
    pub const fn new(points: u16) -> Option<Self> {
        if points <= 10_000 { Some(Self(points)) } else { None }
    }

    pub const fn get(self) -> u16 {
        self.0
    }

    /// Computed once per deal and rounded down, so that the owner never gets a nanoton too little.
    pub fn of(self, price: Nano) -> Nano {
        let commission = i128::from(price.0) * i128::from(self.0) / 10_000;
        Nano(i64::try_from(commission).expect("a part of an i64 is an i64"))
    }
}

/// Where money is. Only the three accounts of a deal have a balance row (on the deal itself); the
/// others are the sum of their postings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Account {
    /// The chain: what came in is negative here, what went out positive.
    ExternalTon,
    Escrow(DealId),
    Payable(DealId),
    Refundable(DealId),
    Commission,
    /// Gas, booked by an operator's adjustment.
    NetworkFees,
    /// Dust, and what nobody can attribute yet.
    Suspense,
}

impl Account {
    pub fn parse(text: &str) -> Option<Self> {
        let account = match text.split_once(':') {
            Some(("ESCROW", deal)) => Self::Escrow(DealId::parse(deal)?),
            Some(("PAYABLE", deal)) => Self::Payable(DealId::parse(deal)?),
            Some(("REFUNDABLE", deal)) => Self::Refundable(DealId::parse(deal)?),
            Some(_) => return None,
            None => match text {
                "EXTERNAL_TON" => Self::ExternalTon,
                "COMMISSION" => Self::Commission,
                "NETWORK_FEES" => Self::NetworkFees,
                "SUSPENSE" => Self::Suspense,
                _ => return None,
            },
        };
        Some(account)
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExternalTon => f.write_str("EXTERNAL_TON"),
            Self::Escrow(deal) => write!(f, "ESCROW:{deal}"),
            Self::Payable(deal) => write!(f, "PAYABLE:{deal}"),
            Self::Refundable(deal) => write!(f, "REFUNDABLE:{deal}"),
            Self::Commission => f.write_str("COMMISSION"),
            Self::NetworkFees => f.write_str("NETWORK_FEES"),
            Self::Suspense => f.write_str("SUSPENSE"),
        }
    }
}

/// One line of a double entry: a credit is positive, a debit negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Posting {
    pub account: Account,
    pub amount: Nano,
}

/// Moves an amount from one account to another: a debit and a credit.
pub fn transfer(from: Account, to: Account, amount: Nano) -> [Posting; 2] {
    [Posting { account: from, amount: -amount }, Posting { account: to, amount }]
}

pub fn sum(postings: &[Posting]) -> i128 {
    postings.iter().map(|posting| i128::from(posting.amount.0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commission_is_rounded_down() {
        let cases = [
            (1_000_000_000, 1000, 100_000_000),
            (9, 1000, 0),
            (19, 1000, 1),
            (1, 10_000, 1),
            (7, 0, 0),
        ];
        for (price, points, expected) in cases {
            let points = BasisPoints::new(points).unwrap();
            assert_eq!(points.of(Nano::new(price)), Nano::new(expected), "{price} at {points:?}");
        }
        let all = BasisPoints::new(10_000).unwrap();
        assert_eq!(all.of(Nano::new(i64::MAX)), Nano::new(i64::MAX));
        assert_eq!(BasisPoints::new(10_001), None);
    }

    #[test]
    fn an_account_is_read_back_from_its_name() {
        let deal = DealId::from_u128(7);
        for account in [
            Account::ExternalTon,
            Account::Escrow(deal),
            Account::Payable(deal),
            Account::Refundable(deal),
            Account::Commission,
            Account::NetworkFees,
            Account::Suspense,
        ] {
            assert_eq!(Account::parse(&account.to_string()), Some(account));
        }
        for text in
            ["", "ESCROW", "ESCROW:1", "escrow:00000000-0000-0000-0000-000000000007", "CASH"]
        {
            assert_eq!(Account::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_transfer_sums_to_zero() {
        let postings = transfer(Account::ExternalTon, Account::Suspense, Nano::new(i64::MAX));
        assert_eq!(sum(&postings), 0);
    }
}
