//! Attaches programs to the clsact hooks of interfaces.

use std::fs::File;
use std::os::fd::AsFd;

use libbpf_rs::{Object, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder};

use super::error::{WireError, WireStep};
use super::object::find;

/// The priority of our tc filters. Together with a handle, it identifies our filters among others.
const PRIORITY: u32 = 0x5f;

/// Attaches a program. Replaces the program that has this handle already, if there is one.
pub(crate) fn attach(
    object: &Object,
    program: &str,
    (interface, point): (u32, TcAttachPoint),
    handle: u32,
) -> Result<(), WireError> {
    let found = find(object, program);
    let mut builder = TcHookBuilder::new(found.as_fd());
    builder
        .ifindex(interface.cast_signed())
        .replace(true)
        .handle(handle)
        .priority(PRIORITY);
    let mut hook = builder.hook(point);
    // If the clsact qdisc exists, `create` leaves it as it is and succeeds.
    hook.create()
        .step(|| format!("adding the clsact qdisc to interface {interface}"))?;
    hook.attach()
        .step(|| format!("attaching `{program}` to interface {interface}"))?;
    Ok(())
}

/// The id of the program with this handle at the ingress hook of an interface; `None` if none is attached.
pub(crate) fn attached_id(object: &Object, program: &str, interface: u32, handle: u32) -> Option<u32> {
    let found = find(object, program);
    let mut builder = TcHookBuilder::new(found.as_fd());
    builder
        .ifindex(interface.cast_signed())
        .handle(handle)
        .priority(PRIORITY);
    builder.hook(TC_INGRESS).query().ok()
}

/// Detaches our filter from these hooks of an interface. Removes the clsact qdisc if it has no other filters.
///
/// # Errors
/// The kernel's error. It is no error if the hook or the interface is gone already.
pub(crate) fn take_away(interface: u32, points: &[TcAttachPoint], handle: u32) -> Result<(), WireError> {
    let Some(name) = name_of(interface) else {
        return Ok(());
    };
    // Detaching does not need the program's descriptor, but needs some open descriptor.
    let null = File::open("/dev/null").step(|| "opening /dev/null".into())?;
    let mut others = false;
    for &point in points {
        let mut builder = TcHookBuilder::new(null.as_fd());
        builder
            .ifindex(interface.cast_signed())
            .handle(handle)
            .priority(PRIORITY);
        let mut hook = builder.hook(point);
        match hook.detach() {
            Ok(()) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => Err(error).step(|| format!("detaching from interface {interface}"))?,
        }
    }
    for point in [TC_EGRESS, TC_INGRESS] {
        others |= has_filters(&name, point);
    }
    if !others {
        let mut hook = TcHook::new(null.as_fd());
        hook.ifindex(interface.cast_signed())
            .attach_point(TC_EGRESS | TC_INGRESS);
        match hook.destroy() {
            Ok(()) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                Err(error).step(|| format!("removing the clsact qdisc of interface {interface}"))?
            }
        }
    }
    Ok(())
}

/// Whether any filter is attached to the hook. If `tc` fails, the answer is yes, so that the qdisc stays.
pub(crate) fn has_filters(interface: &str, point: TcAttachPoint) -> bool {
    let side = if point == TC_INGRESS { "ingress" } else { "egress" };
    let listing = std::process::Command::new("tc")
        .args(["filter", "show", "dev", interface, side])
        .output();
    listing.map_or(true, |output| {
        !output.status.success() || !output.stdout.trim_ascii().is_empty()
    })
}

/// The name of an interface. `None` if there is no such interface.
fn name_of(interface: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(interface).ok()?;
    // This call reports a missing interface by an empty name.
    name.into_string().ok().filter(|name| !name.is_empty())
}

fn is_gone(error: &libbpf_rs::Error) -> bool {
    matches!(
        error.kind(),
        libbpf_rs::ErrorKind::NotFound | libbpf_rs::ErrorKind::InvalidInput
    )
}
