//! Compares the HTTP tracker and the resumer with kawa, the HTTP/1 parser of the proxy Sōzu. kawa shares no code with httparse, which the
//! tracker uses.

mod continued;
mod other;
mod replies;
mod requests;

/// Splits an input into its parts. A separator line stands between two parts.
fn parts<const COUNT: usize>(input: &[u8]) -> [&[u8]; COUNT] {
    const APART: &[u8] = b"=====\n";
    let mut rest = input;
    std::array::from_fn(|_| {
        let end = rest.windows(APART.len()).position(|window| window == APART);
        let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
        rest = behind.strip_prefix(APART).unwrap_or_default();
        part
    })
}

/// Length of the blank lines at the beginning of `stream`, in bytes. A server ignores blank lines before a request (RFC 9112 §2.2).
fn blank(stream: &[u8]) -> usize {
    stream.iter().take_while(|byte| b"\r\n".contains(byte)).count()
}
