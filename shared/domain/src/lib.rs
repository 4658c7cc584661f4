//! The rules of the escrow, in reading order. Pure: nothing here reads a clock, an environment or a
//! network, and nothing here knows how it is stored or sent.

pub mod time;
pub mod ids;
pub mod ton;
pub mod money;
pub mod state;
pub mod deal;
pub mod fact;
pub mod refund;
pub mod message;
pub mod key;
pub mod result;
pub mod policy;
pub mod plan;
pub mod decision;
