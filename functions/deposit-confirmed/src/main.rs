//! Wires `deposit-confirmed` to its sources; everything else is in the library and the platform.

use platform::catalog::DEPOSIT_CONFIRMED;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    platform::results::run(&DEPOSIT_CONFIRMED, deposit_confirmed::decide).await
}
