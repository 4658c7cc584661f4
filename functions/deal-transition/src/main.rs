//! Wires `deal-transition` to its sources; everything else is in the library and the platform.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    platform::commands::run(deal_transition::decide).await
}
