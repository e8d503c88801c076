//! A hash of the layout of pinned maps. By this hash, a later agent knows whether its programs fit the maps.

use std::path::Path;

use super::error::{WireError, WireStep};

/// Name of a symbolic link beside the pinned maps. Its target is the layout's hash in hexadecimal.
const ABI_LINK: &str = "abi";

/// Initial value of an FNV-1a hash (Fowler, Noll, Vo). The hash need not resist attackers.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

const fn hash_byte(sum: u64, byte: u8) -> u64 {
    (sum ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
}

pub(crate) const fn hash(text: &[u8]) -> u64 {
    let (mut sum, mut at) = (FNV_OFFSET, 0);
    while at < text.len() {
        sum = hash_byte(sum, text[at]);
        at += 1;
    }
    sum
}

/// Hash of C sources without their comments and white space: the hash of a layout. No string in the sources may contain a comment sign.
pub(crate) const fn hash_code(sources: &[&[u8]]) -> u64 {
    let (mut sum, mut source) = (FNV_OFFSET, 0);
    while source < sources.len() {
        let (text, mut at) = (sources[source], 0);
        while at < text.len() {
            if is_at(text, at, *b"//") {
                while at < text.len() && text[at] != b'\n' {
                    at += 1;
                }
            } else if is_at(text, at, *b"/*") {
                at += 2;
                while at < text.len() && !is_at(text, at, *b"*/") {
                    at += 1;
                }
                at += 2;
            } else {
                if !text[at].is_ascii_whitespace() {
                    sum = hash_byte(sum, text[at]);
                }
                at += 1;
            }
        }
        source += 1;
    }
    sum
}

const fn is_at(text: &[u8], at: usize, sign: [u8; 2]) -> bool {
    at + 1 < text.len() && text[at] == sign[0] && text[at + 1] == sign[1]
}

/// Records the layout of the pinned maps in `pin_dir`. This is the last step of pinning.
pub(crate) fn stamp(pin_dir: &Path, layout: u64) -> Result<(), WireError> {
    let link = pin_dir.join(ABI_LINK);
    std::os::unix::fs::symlink(format!("{layout:016x}"), &link).step(|| format!("making {}", link.display()))
}

/// Whether the maps that are pinned in `pin_dir` have this layout.
pub(crate) fn fits(pin_dir: &Path, layout: u64) -> bool {
    let pinned = std::fs::read_link(pin_dir.join(ABI_LINK)).unwrap_or_default();
    pinned == Path::new(&format!("{layout:016x}"))
}

#[cfg(test)]
mod tests {
    use super::hash_code;

    #[test]
    fn only_code_counts_for_the_layout() {
        let code = hash_code(&[b"struct a { __u32 b; };"]);
        for same in [
            "struct a {\n\t__u32 b; // a comment\n};\n",
            "/* two\nlines */ struct a { __u32 b; /* inside */ };",
            "struct a { __u32 b; }; /* that never ends",
        ] {
            assert_eq!(hash_code(&[same.as_bytes()]), code, "{same}");
        }
        for other in ["struct a { __u64 b; };", "struct a { __u32 b; } / ;"] {
            assert_ne!(hash_code(&[other.as_bytes()]), code, "{other}");
        }
    }
}
