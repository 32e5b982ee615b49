pub fn read(_v: *mut *mut u8) {}
pub fn report_probe() {}
