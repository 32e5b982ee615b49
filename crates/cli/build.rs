//! Passes the identity of this build to the launcher.

include!("build_identity.rs");

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build_identity.rs");
    provide_identity();
}
