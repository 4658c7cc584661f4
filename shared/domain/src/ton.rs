//! TON accounts and transaction hashes as values. One account has several spellings (raw, bounceable
//! or not, url-safe or not); two spellings of it must compare equal wherever money depends on it.

use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Why a text is no account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressError {
    Length,
    Encoding,
    Tag,
    Checksum,
    Workchain,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "an address has 48 base64 characters or is workchain:64 hex digits",
            Self::Encoding => "an address is base64 (url-safe or not) or workchain:hex",
            Self::Tag => "the address's first byte is no known tag",
            Self::Checksum => "the address's checksum does not match",
            Self::Workchain => "the workchain is neither 0 nor -1",
        })
    }
}

/// A TON account: workchain and 256-bit account id. The bounceable and test-only flags of a spelling
/// are wishes of whoever wrote it down, not part of the account.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    workchain: i8,
    account: [u8; 32],
}

const BOUNCEABLE: u8 = 0x11;
const NON_BOUNCEABLE: u8 = 0x51;
const TEST_ONLY: u8 = 0x80;
const CHECKSUM: crc::Crc<u16> = crc::Crc::<u16>::new(&crc::CRC_16_XMODEM);

impl Address {
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        match text.split_once(':') {
            Some((workchain, account)) => Self::parse_raw(workchain, account),
            None => Self::parse_friendly(text),
        }
    }

    pub const fn from_parts(workchain: i8, account: [u8; 32]) -> Self {
        Self { workchain, account }
    }

    fn parse_raw(workchain: &str, account: &str) -> Result<Self, AddressError> {
        let workchain = match workchain {
            "0" => 0,
            "-1" => -1,
            _ => return Err(AddressError::Workchain),
        };
        if account.len() != 64 {
            return Err(AddressError::Length);
        }
        let mut bytes = [0u8; 32];
        hex::decode_to_slice(account, &mut bytes).map_err(|_| AddressError::Encoding)?;
        Ok(Self { workchain, account: bytes })
    }

    fn parse_friendly(text: &str) -> Result<Self, AddressError> {
        if text.len() != 48 {
            return Err(AddressError::Length);
        }
        let bytes: [u8; 36] = decode_base64(text)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(AddressError::Encoding)?;
        if !matches!(bytes[0] & !TEST_ONLY, BOUNCEABLE | NON_BOUNCEABLE) {
            return Err(AddressError::Tag);
        }
        if CHECKSUM.checksum(&bytes[..34]).to_be_bytes() != bytes[34..] {
            return Err(AddressError::Checksum);
        }
        let workchain = match bytes[1] {
            0x00 => 0,
            0xff => -1,
            _ => return Err(AddressError::Workchain),
        };
        let mut account = [0u8; 32];
        account.copy_from_slice(&bytes[2..34]);
        Ok(Self { workchain, account })
    }

    /// The spelling that wallets show, url-safe. Payout and refund commands use the non-bounceable
    /// one: money sent to a wallet that is not deployed yet must stay there.
    pub fn to_friendly(self, bounceable: bool) -> String {
        let mut bytes = [0u8; 36];
        bytes[0] = if bounceable { BOUNCEABLE } else { NON_BOUNCEABLE };
        bytes[1] = self.workchain as u8;
        bytes[2..34].copy_from_slice(&self.account);
        let checksum = CHECKSUM.checksum(&bytes[..34]).to_be_bytes();
        bytes[34..].copy_from_slice(&checksum);
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
    }
}

/// The raw form: the one spelling that every key and row uses.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.workchain, hex::encode(self.account))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A transaction's 256-bit hash: hex or base64 on the wire, lower-case hex in every key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxHash([u8; 32]);

impl TxHash {
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn parse(text: &str) -> Option<Self> {
        if text.len() == 64 {
            let mut bytes = [0u8; 32];
            hex::decode_to_slice(text, &mut bytes).ok()?;
            return Some(Self(bytes));
        }
        decode_base64(text)?.try_into().ok().map(Self)
    }
}

impl fmt::Display for TxHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for TxHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let url_safe = text.contains(['-', '_']);
    let alphabet = if url_safe { &alphabet::URL_SAFE } else { &alphabet::STANDARD };
    let lenient =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(alphabet, lenient).decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // One account in the spellings that the TON documentation publishes for it.
    const RAW: &str = "0:ca6e321c7cce9ecedf0a8ca2492ec8592494aa5fb5ce0387dff96ef6af982a3e";
    const BOUNCEABLE_URL: &str = "EQDKbjIcfM6ezt8KjKJJLshZJJSqX7XOA4ff-W72r5gqPrHF";
    const PLAIN_URL: &str = "UQDKbjIcfM6ezt8KjKJJLshZJJSqX7XOA4ff-W72r5gqPuwA";
    const BOUNCEABLE_STD: &str = "EQDKbjIcfM6ezt8KjKJJLshZJJSqX7XOA4ff+W72r5gqPrHF";
    const TEST_BOUNCEABLE: &str = "kQDKbjIcfM6ezt8KjKJJLshZJJSqX7XOA4ff-W72r5gqPgpP";

    #[test]
    fn every_spelling_is_the_same_account() {
        let account = Address::parse(RAW).unwrap();
        for text in [BOUNCEABLE_URL, PLAIN_URL, BOUNCEABLE_STD, TEST_BOUNCEABLE] {
            assert_eq!(Address::parse(text), Ok(account), "{text}");
        }
        assert_eq!(Address::parse(&RAW.to_uppercase()), Ok(account));
        assert_eq!(account.to_string(), RAW);
        assert_eq!(account.to_friendly(true), BOUNCEABLE_URL);
        assert_eq!(account.to_friendly(false), PLAIN_URL);
    }

    #[test]
    fn a_masterchain_account_keeps_its_workchain() {
        // The elector contract.
        let raw = "-1:3333333333333333333333333333333333333333333333333333333333333333";
        let elector = Address::parse(raw).unwrap();
        assert_eq!(elector.to_friendly(true), "Ef8zMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzM0vF");
        assert_eq!(Address::parse(&elector.to_friendly(false)), Ok(elector));
        assert_ne!(Ok(elector), Address::parse(&raw.replace("-1:", "0:")));
    }

    #[test]
    fn a_wrong_address_is_refused_with_its_reason() {
        let wrong_digit = BOUNCEABLE_URL.replace("cfM6", "cfM7");
        let cases = [
            ("", AddressError::Length),
            ("EQabc...", AddressError::Length),
            (wrong_digit.as_str(), AddressError::Checksum),
            (&RAW[..60], AddressError::Length),
            (
                "2:ca6e321c7cce9ecedf0a8ca2492ec8592494aa5fb5ce0387dff96ef6af982a3e",
                AddressError::Workchain,
            ),
            (
                "0:zz6e321c7cce9ecedf0a8ca2492ec8592494aa5fb5ce0387dff96ef6af982a3e",
                AddressError::Encoding,
            ),
            ("!QDKbjIcfM6ezt8KjKJJLshZJJSqX7XOA4ff-W72r5gqPrHF", AddressError::Encoding),
            ("AADKbjIcfM6ezt8KjKJJLshZJJSqX7XOA4ff-W72r5gqPrHF", AddressError::Tag),
        ];
        for (text, expected) in cases {
            assert_eq!(Address::parse(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn every_single_changed_character_of_an_address_is_noticed() {
        for position in 0..48 {
            let mut bytes = BOUNCEABLE_URL.as_bytes().to_vec();
            bytes[position] = if bytes[position] == b'A' { b'B' } else { b'A' };
            let text = String::from_utf8(bytes).unwrap();
            assert!(Address::parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_hash_is_read_from_hex_and_both_base64_alphabets() {
        let hash = TxHash::from_bytes([0xfb; 32]);
        let standard = base64::engine::general_purpose::STANDARD.encode([0xfb; 32]);
        let url = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode([0xfb; 32]);
        for text in [hash.to_string(), hash.to_string().to_uppercase(), standard, url] {
            assert_eq!(TxHash::parse(&text), Some(hash), "{text}");
        }
        for text in ["", "abc123def456...", "ff", &"g".repeat(64), &"f".repeat(63)] {
            assert_eq!(TxHash::parse(text), None, "{text}");
        }
    }
}
