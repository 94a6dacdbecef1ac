//! System calls of the program: what they touch.

mod commands;
mod ioctl;
pub mod records;
pub mod shapes;
mod table;
pub mod walk;

pub use commands::is_kept;

#[cfg(test)]
mod tests;
