//! Everything that touches the world, in reading order: what the functions are, how they are set up,
//! what comes in, whether to believe it, where it is kept, and the pipeline that ties it together.

pub mod catalog;
pub mod config;
pub mod telemetry;
pub mod clock;
pub mod aws;
pub mod wire;
pub mod secrets;
pub mod signature;
pub mod store;
pub mod letter;
pub mod doorbell;
pub mod outbox;
pub mod apply;
pub mod pipeline;
pub mod results;
pub mod unclaimed;
pub mod commands;
