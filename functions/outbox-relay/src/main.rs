//! Wires `outbox-relay` to its doorbell.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    outbox_relay::bell::run().await
}
