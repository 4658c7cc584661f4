//! Wires `verification-result` to its sources; everything else is in the library and the platform.

use platform::catalog::VERIFICATION_RESULT;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    platform::results::run(&VERIFICATION_RESULT, verification_result::decide).await
}
