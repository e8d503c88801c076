//! Takes lines and headers from a stream of bytes.

/// The blank line that ends a header section, with the end of the line before it.
pub(super) const HEAD_END: &[u8] = b"\r\n\r\n";

/// Removes a header section from the front of `bytes` and returns it without [`HEAD_END`]. `None` if the section is not complete yet.
pub(super) fn take_head(bytes: &mut Vec<u8>) -> Option<String> {
    let end = bytes
        .windows(HEAD_END.len())
        .position(|window| window == HEAD_END)?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    bytes.drain(..end + HEAD_END.len());
    Some(head)
}

/// Removes a line from the front of `bytes` and returns it without its CRLF. `None` if the line is not complete yet.
pub(super) fn take_line(bytes: &mut Vec<u8>) -> Option<String> {
    let end = bytes.windows(2).position(|window| window == b"\r\n")?;
    let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
    bytes.drain(..end + 2);
    Some(line)
}
