//! The test of a link: round trips, then bytes in both directions, over a lane that nothing else uses.
//!
//! The decoder leads, because it opens lanes. Each direction has some rounds, each bounded in bytes and in time, so that
//! neither a fast nor a slow link takes long; the differences between rounds are kept.

use std::time::{Duration, Instant};

use muser_enrol::{FrameError, Kind, LinkReport, Message, Round};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::channel::Channel;
use super::failure::EnrolError;

const ROUND_TRIPS: u32 = 16;
const ROUNDS: usize = 4;
/// Four rounds are 64 MiB, or a second.
const ROUND_BYTES: u64 = 16 << 20;
const ROUND_TIME: Duration = Duration::from_millis(250);
/// Limit for the confirmation of a round: bytes that a socket took within the round's time may arrive later.
const ARRIVAL: Duration = Duration::from_secs(60);
const FRAME_BYTES: u32 = 64 << 10;

/// Kernel's busy time of a connection since it was opened, us; `None` if the kernel does not report it.
pub(super) type BusyTime<'a> = &'a (dyn Fn() -> Option<u64> + Send + Sync);

/// Leads the test.
pub(super) async fn lead<S: AsyncRead + AsyncWrite + Unpin>(
    channel: &mut Channel<S>,
    busy: BusyTime<'_>,
) -> Result<LinkReport, EnrolError> {
    let mut report = LinkReport::default();
    for number in 0..ROUND_TRIPS.into() {
        let began = Instant::now();
        channel.send(&Message::Ping(number)).await?;
        match channel.receive(Kind::Pong).await? {
            Message::Pong(same) if same == number => {}
            _ => return Err(FrameError::Value { kind: Kind::Pong, field: "number" }.into()),
        }
        report.round_trips_us.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
    for _ in 0..ROUNDS {
        report.to_producer.push(send(channel, (ROUND_BYTES, ROUND_TIME), busy).await?);
        let time_max_ms = u32::try_from(ROUND_TIME.as_millis()).unwrap_or(u32::MAX);
        channel.send(&Message::AskBulk { bytes_max: ROUND_BYTES, time_max_ms }).await?;
        let first = channel.receive(Kind::Bulk).await?;
        take(channel, first).await?;
        match channel.receive(Kind::BulkSent).await? {
            Message::BulkSent(round) => report.to_decoder.push(round),
            other => return Err(EnrolError::Unexpected { got: other.kind(), wanted: Kind::BulkSent }),
        }
    }
    Ok(report)
}

/// Answers until the leader closes the lane.
pub(super) async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    channel: &mut Channel<S>,
    busy: BusyTime<'_>,
) -> Result<(), EnrolError> {
    let limit = channel.limit;
    loop {
        let heard = timeout(limit, channel.next(&[Kind::Ping, Kind::Bulk, Kind::AskBulk])).await;
        match heard.unwrap_or(Err(EnrolError::TooSlow { what: "the next part of a test of the link", limit }))? {
            None => return Ok(()),
            Some(Message::Ping(number)) => channel.send(&Message::Pong(number)).await?,
            Some(Message::AskBulk { bytes_max, time_max_ms }) => {
                let bounds = (bytes_max.min(ROUND_BYTES), Duration::from_millis(time_max_ms.into()).min(ROUND_TIME));
                let round = send(channel, bounds, busy).await?;
                channel.send(&Message::BulkSent(round)).await?;
            }
            Some(first) => take(channel, first).await?,
        }
    }
}

/// Sends bytes until either bound, at least one frame of them, and waits until they are confirmed.
async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    channel: &mut Channel<S>,
    (bytes_max, time_max): (u64, Duration),
    busy: BusyTime<'_>,
) -> Result<Round, EnrolError> {
    let payload = Message::Bulk(vec![0; FRAME_BYTES as usize]);
    let (before, began, mut sent) = (busy(), Instant::now(), 0u64);
    loop {
        channel.send(&payload).await?;
        sent += u64::from(FRAME_BYTES);
        if sent >= bytes_max || began.elapsed() >= time_max {
            break;
        }
    }
    channel.send(&Message::BulkEnd(sent)).await?;
    let seen = match channel.receive_within(Kind::BulkSeen, ARRIVAL).await? {
        Message::BulkSeen(seen) => seen,
        other => return Err(EnrolError::Unexpected { got: other.kind(), wanted: Kind::BulkSeen }),
    };
    if seen != sent {
        return Err(EnrolError::BytesLost { sent, seen });
    }
    let wall_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let busy_us = busy().zip(before).and_then(|(after, before)| after.checked_sub(before));
    Ok(Round { bytes: sent, wall_us, busy_us })
}

/// Takes bytes, of which `first` were the first, and confirms them.
async fn take<S: AsyncRead + AsyncWrite + Unpin>(channel: &mut Channel<S>, first: Message) -> Result<(), EnrolError> {
    let mut seen = 0u64;
    let mut message = first;
    let taking = async {
        loop {
            match message {
                Message::Bulk(bytes) => seen += bytes.len() as u64,
                Message::BulkEnd(sent) if sent == seen => return Ok(seen),
                Message::BulkEnd(sent) => return Err(EnrolError::BytesLost { sent, seen }),
                other => return Err(EnrolError::Unexpected { got: other.kind(), wanted: Kind::BulkEnd }),
            }
            // One frame beyond the bound may be under way.
            if seen > ROUND_BYTES + u64::from(FRAME_BYTES) {
                return Err(FrameError::Value { kind: Kind::Bulk, field: "the number of all bytes" }.into());
            }
            message = channel.next(&[Kind::Bulk, Kind::BulkEnd]).await?.ok_or(EnrolError::Closed)?;
        }
    };
    let late = EnrolError::TooSlow { what: "the bytes of a test of the link", limit: ARRIVAL };
    let seen = timeout(ARRIVAL, taking).await.unwrap_or(Err(late))?;
    channel.send(&Message::BulkSeen(seen)).await
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    fn ends() -> (Channel<DuplexStream>, Channel<DuplexStream>) {
        let (one, other) = duplex(256 << 10);
        (Channel::new(one, Duration::from_secs(20)), Channel::new(other, Duration::from_secs(20)))
    }

    #[test]
    fn both_directions_are_measured_some_times_and_each_within_its_bounds() {
        run(async {
            let (mut leader, mut follower) = ends();
            let busy = || Some(7);
            let leading = async {
                let report = lead(&mut leader, &busy).await;
                drop(leader);
                report
            };
            let (report, answered) = tokio::join!(leading, answer(&mut follower, &|| None));
            answered.unwrap();
            let report = report.unwrap();
            assert_eq!(report.round_trips_us.len(), 16);
            assert_eq!((report.to_producer.len(), report.to_decoder.len()), (4, 4));
            for round in report.to_producer.iter().chain(&report.to_decoder) {
                assert!(
                    (u64::from(FRAME_BYTES)..=ROUND_BYTES).contains(&round.bytes) && round.wall_us > 0,
                    "{round:?}"
                );
            }
            assert!(report.to_producer.iter().all(|round| round.busy_us == Some(0)));
            assert!(report.to_decoder.iter().all(|round| round.busy_us.is_none()));
        });
    }

    #[test]
    fn a_peer_that_miscounts_or_never_stops_is_found_out() {
        run(async {
            let (mut leader, mut follower) = ends();
            let lying = async {
                leader.send(&Message::Bulk(vec![1; 10])).await.unwrap();
                leader.send(&Message::BulkEnd(11)).await.unwrap();
            };
            let (_, answered) = tokio::join!(lying, answer(&mut follower, &|| None));
            assert!(matches!(answered, Err(EnrolError::BytesLost { sent: 11, seen: 10 })));

            let (mut leader, mut follower) = ends();
            let flooding = async { while leader.send(&Message::Bulk(vec![0; FRAME_BYTES as usize])).await.is_ok() {} };
            let answering = async {
                let answered = answer(&mut follower, &|| None).await;
                drop(follower);
                answered
            };
            let (_, answered) = tokio::join!(flooding, answering);
            assert!(matches!(answered, Err(EnrolError::Frame(FrameError::Value { kind: Kind::Bulk, .. }))));
        });
    }
}
