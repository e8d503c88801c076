//! Random bytes of the C library, which asks the kernel without passing through this library.

use std::ffi::{c_int, c_void};
use std::mem;

use libc::size_t;
use proto::order::RANDOM_MAX;

use crate::calls::bytes_mut;
use crate::system::NextFunction;
use crate::{system, with_server};

/// Largest request of `getentropy`.
const ENTROPY_MAX: usize = 256;

/// # Safety
/// `size` bytes at `buffer` may be written.
unsafe fn fill(buffer: *mut c_void, size: size_t) -> bool {
    // SAFETY: the caller's contract.
    let bytes = unsafe { bytes_mut(buffer, size) };
    bytes.chunks_mut(RANDOM_MAX).all(|part| {
        with_server(|server| {
            server.random(part, |part| {
                // SAFETY: the slice is valid.
                let got = unsafe { system::getrandom(part.as_mut_ptr().cast(), part.len(), 0) };
                got == Ok(part.len() as u64)
            })
        }) == Some(true)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getentropy(buffer: *mut c_void, size: size_t) -> c_int {
    type Function = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
    static NEXT: NextFunction = NextFunction::new(c"getentropy");
    // SAFETY: the caller's contract.
    if size <= ENTROPY_MAX && unsafe { fill(buffer, size) } {
        return 0;
    }
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(NEXT.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(buffer, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn arc4random_buf(buffer: *mut c_void, size: size_t) {
    type Function = unsafe extern "C" fn(*mut c_void, size_t);
    static NEXT: NextFunction = NextFunction::new(c"arc4random_buf");
    // SAFETY: the caller's contract.
    if unsafe { fill(buffer, size) } {
        return;
    }
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(NEXT.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(buffer, size) };
}

#[unsafe(no_mangle)]
extern "C" fn arc4random() -> u32 {
    let mut bytes = [0; 4];
    // SAFETY: the array is valid.
    unsafe { arc4random_buf(bytes.as_mut_ptr().cast(), bytes.len()) };
    u32::from_ne_bytes(bytes)
}

/// A number less than `bound`, without a bias: numbers beyond the last multiple of `bound` are drawn again.
#[unsafe(no_mangle)]
extern "C" fn arc4random_uniform(bound: u32) -> u32 {
    if bound < 2 {
        return 0;
    }
    let least = bound.wrapping_neg() % bound;
    loop {
        let drawn = arc4random();
        if drawn >= least {
            return drawn % bound;
        }
    }
}
