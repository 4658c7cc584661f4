//! Wires `refund-completed` to its sources; everything else is in the library and the platform.

use platform::catalog::REFUND_COMPLETED;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    platform::results::run(&REFUND_COMPLETED, refund_completed::decide).await
}
