//! The secret that the two nodes share.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The form of a key file, for error messages.
pub(super) const FORM: &str = "64 hexadecimal digits, as openssl rand -hex 32 makes them";

/// A secret of 32 bytes. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey([u8; 32]);

impl SecretKey {
    /// The key in the file `path`.
    ///
    /// # Errors
    /// The problem with the file, and the allowed form.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = private(path)?;
        let digits = text.trim_end().as_bytes();
        let wrong = || format!("{} does not hold a key; allowed: {FORM}", path.display());
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            let (high, low) = digit(0).zip(digit(1)).ok_or_else(wrong)?;
            *byte = u8::try_from(high << 4 | low).expect("two digits");
        }
        Ok(Self(bytes))
    }

    /// The secret itself.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Reads the text of a file with a secret. Fails if users other than the file's owner and group have any access to the file.
///
/// # Errors
/// The problem with the file.
pub fn private(path: &Path) -> Result<String, String> {
    let fault = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let text = fs::read_to_string(path).map_err(fault)?;
    let mode = fs::metadata(path).map_err(fault)?.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(format!(
            "{} is open to everybody (mode {:o}); allowed: a file that only its owner and group can read",
            path.display(),
            mode & 0o777
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, mode: u32) -> Result<SecretKey, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        SecretKey::read(file.path())
    }

    #[test]
    fn a_key_is_read() {
        let key = read(&format!("{}{}\n", "00".repeat(30), "0aFf"), 0o600).unwrap();
        assert_eq!(key.bytes()[29..], [0, 0x0a, 0xff]);
        assert_eq!(format!("{key:?}"), "Key(…)");
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in [
            "",
            "00",
            &"0".repeat(63),
            &"0".repeat(65),
            &"g".repeat(64),
            &"é".repeat(32),
        ] {
            assert!(read(text, 0o600).unwrap_err().contains("allowed: 64"), "{text}");
        }
        assert!(read(&"0".repeat(64), 0o604).unwrap_err().contains("mode 604"));
        assert!(
            SecretKey::read(Path::new("/nowhere"))
                .unwrap_err()
                .contains("cannot be read")
        );
    }
}
