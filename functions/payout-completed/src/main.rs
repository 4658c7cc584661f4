//! Wires `payout-completed` to its sources; everything else is in the library and the platform.

use platform::catalog::PAYOUT_COMPLETED;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    platform::results::run(&PAYOUT_COMPLETED, payout_completed::decide).await
}
