//! What a call of the library fails with.

use std::ffi::CStr;
use std::fmt;

use flashattn_sys as sys;

/// The status of a failed call, and the message with the failed condition and the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: i32,
    message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns one of `sys::FLASH_ERROR_...`.
    pub fn status(&self) -> i32 {
        self.status
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn invalid(message: String) -> Self {
        Error { status: sys::FLASH_ERROR_INVALID_ARGUMENT, message }
    }

    pub(crate) fn out_of_memory(message: String) -> Self {
        Error { status: sys::FLASH_ERROR_OUT_OF_MEMORY, message }
    }

    /// Makes a result of a status that the library returned to this thread just now.
    pub(crate) fn check(status: i32) -> Result<()> {
        if status == sys::FLASH_SUCCESS {
            return Ok(());
        }
        let text = unsafe { CStr::from_ptr(sys::flash_last_error()) };
        Err(Error { status, message: text.to_string_lossy().into_owned() })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = unsafe { CStr::from_ptr(sys::flash_status_string(self.status)) };
        write!(f, "{}: {}", name.to_string_lossy(), self.message)
    }
}

impl std::error::Error for Error {}
