//! What AWS's event source mappings do for MSK and self-managed Kafka, in reading order: the mappings,
//! the template they are read from, the filter, the event, the batches, the function, the loop.

pub mod mapping;
pub mod template;
pub mod filter;
pub mod payload;
pub mod batch;
pub mod lambda;
pub mod clock;
pub mod log;
pub mod source;
