//! Wires `unclaimed-results` to its sources; everything else is in the platform.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    platform::unclaimed::run().await
}
