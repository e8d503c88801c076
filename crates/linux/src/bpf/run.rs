//! Runs a loaded program once (BPF_PROG_TEST_RUN).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{Object, libbpf_sys};

use super::object::find;

/// A frame as input of a program, and room for the frame after the run.
pub(crate) struct RunData<'a> {
    /// The frame.
    pub(crate) input: &'a [u8],
    /// Room for the frame after the run. The run truncates it to the frame's length.
    pub(crate) output: &'a mut Vec<u8>,
}

/// Runs a program with this context. Returns what the program returns. If the program is a syscall program, its changes to the context are
/// in `context` afterwards. A tc program's changes to its context are lost.
pub(crate) fn run(
    object: &Object,
    program: &str,
    context: &mut [u8],
    mut data: Option<RunData<'_>>,
) -> io::Result<u32> {
    let found = find(object, program);
    // SAFETY: zeroes are valid: all members are numbers and pointers that may be null.
    let mut options: libbpf_sys::bpf_test_run_opts = unsafe { std::mem::zeroed() };
    let size = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
    options.sz = size_of_val(&options) as libbpf_sys::size_t;
    options.ctx_in = context.as_mut_ptr().cast();
    options.ctx_size_in = size(context.len())?;
    if let Some(data) = &mut data {
        options.data_in = data.input.as_ptr().cast();
        options.data_size_in = size(data.input.len())?;
        options.data_out = data.output.as_mut_ptr().cast();
        options.data_size_out = size(data.output.len())?;
    }
    // SAFETY: all pointers are null or point to memory of the given sizes that outlives the call. The kernel writes to `ctx_in` (only for a
    // syscall program) and to `data_out`. Both are mutably borrowed.
    let outcome = unsafe { libbpf_sys::bpf_prog_test_run_opts(found.as_fd().as_raw_fd(), &raw mut options) };
    if outcome < 0 {
        return Err(io::Error::from_raw_os_error(-outcome));
    }
    if let Some(data) = data {
        data.output.truncate(options.data_size_out as usize);
    }
    Ok(options.retval)
}
