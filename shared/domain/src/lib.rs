//! The rules of the escrow, in reading order. Pure: nothing here reads a clock, an environment or a
//! network, and nothing here knows how it is stored or sent.

// A new state must make every decision that does not know it fail to compile.
#![warn(clippy::wildcard_enum_match_arm)]

pub mod time;
pub mod ids;
pub mod ton;
pub mod money;
pub mod state;
pub mod deal;
pub mod fact;
pub mod refund;
pub mod release;
pub mod message;
pub mod key;
pub mod result;
pub mod command;
pub mod policy;
pub mod plan;
pub mod filing;
pub mod decision;
