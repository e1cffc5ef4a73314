//! The protocol of an enrolment: admission of a new node to a cluster over the network, once. Bytes in, messages out, and
//! back; no socket, thread or clock.
//!
//! - `ticket` is the text that a person carries to the new node.
//! - `frame` and `message` are what the two ends say; `report` are the results of their tests.

#![forbid(unsafe_code)]

mod frame;
mod message;
mod report;
mod ticket;

pub use frame::{FrameError, HEADER_BYTES, Kind, parse_header};
pub use message::{Apply, Grant, Message, RefuseCode, Trial};
pub use report::{Difference, LinkReport, Qualification, Rates, Round};
pub use ticket::{IssueError, IssuedTicket, RedeemError, Ticket, TicketTextError};
