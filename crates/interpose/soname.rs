/// Returns the library's soname: the part of the version that changes with its interface for C
/// programs. That is the major version, and before 1.0 the minor version, too.
pub fn soname(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"));
    if major == "0" { format!("libusring.so.0.{minor}") } else { format!("libusring.so.{major}") }
}
