//! Real engines for tests and local runs: a DynamoDB engine inside the process, SQS and Secrets
//! Manager from ministack. Also the deals and records that samples, tests and the demo share.

pub mod catalog;
pub mod engine;
pub mod java;
pub mod dynamodb_local;
pub mod apache_kafka;
pub mod ministack;
pub mod programs;
pub mod emulator;
pub mod bed;
pub mod deals;
pub mod faults;
pub mod proxy;
pub mod functions;
pub mod records;
pub mod broker;
pub mod published;
pub mod schemas;
pub mod stage;
pub mod api;
pub mod logs;
pub mod deployed;
pub mod story;
pub mod samples;
pub mod report;
