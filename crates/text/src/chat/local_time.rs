//! A date and time of day for templates that print one. The time is an argument; nothing here reads a clock.

use std::fmt::Write;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A date of the Gregorian calendar and a time of day, without a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// Days since 1970-01-01.
    days: i64,
    /// Seconds since midnight.
    seconds: i64,
}

/// A day of the calendar.
struct Date {
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
}

impl LocalTime {
    /// The time `seconds` after 1970-01-01T00:00:00; add the offset of the zone first, or leave it out for UTC.
    pub fn from_seconds(seconds: i64) -> Self {
        Self { days: seconds.div_euclid(86_400), seconds: seconds.rem_euclid(86_400) }
    }

    /// The time written as C's `strftime` would in the C locale. `None` if `format` asks for anything but
    /// `%a %A %b %B %d %e %H %I %j %m %M %p %S %y %Y %F %T %%`, or those with a `-` that takes leading zeros away.
    pub(crate) fn format(self, format: &str) -> Option<String> {
        let mut text = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            match chars.next()? {
                '-' => {
                    let padded = self.directive(chars.next()?)?;
                    let short = padded.trim_start_matches(['0', ' ']);
                    text.push_str(if short.is_empty() { "0" } else { short });
                }
                directive => text.push_str(&self.directive(directive)?),
            }
        }
        Some(text)
    }

    fn directive(self, directive: char) -> Option<String> {
        let Date { year, month, day } = self.date();
        let (hour, minute, second) = (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let written = match directive {
            'a' => write!(text, "{}", &self.weekday()[..3]),
            'A' => write!(text, "{}", self.weekday()),
            'b' => write!(text, "{}", &month_name(month)[..3]),
            'B' => write!(text, "{}", month_name(month)),
            'd' => write!(text, "{day:02}"),
            'e' => write!(text, "{day:2}"),
            'H' => write!(text, "{hour:02}"),
            'I' => write!(text, "{:02}", (hour + 11) % 12 + 1),
            'j' => write!(text, "{:03}", self.days - days_before(year, 1) + 1),
            'm' => write!(text, "{month:02}"),
            'M' => write!(text, "{minute:02}"),
            'p' => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
            'S' => write!(text, "{second:02}"),
            'y' => write!(text, "{:02}", year.rem_euclid(100)),
            'Y' => write!(text, "{year}"),
            'F' => write!(text, "{year}-{month:02}-{day:02}"),
            'T' => write!(text, "{hour:02}:{minute:02}:{second:02}"),
            '%' => write!(text, "%"),
            _ => return None,
        };
        written.is_ok().then_some(text)
    }

    fn weekday(self) -> &'static str {
        // The first day of 1970 was a Thursday. A remainder by seven is below seven.
        usize::try_from((self.days + 4).rem_euclid(7)).map_or("", |index| WEEKDAYS[index])
    }

    fn date(self) -> Date {
        // An estimate that is never too early, as no year is longer than 366 days on average over its past.
        let mut year = 1970 + self.days.div_euclid(365);
        while days_before(year, 1) > self.days {
            year -= (days_before(year, 1) - self.days) / 366 + 1;
        }
        while days_before(year + 1, 1) <= self.days {
            year += 1;
        }
        let mut month = 1;
        while month < 12 && days_before(year, month + 1) <= self.days {
            month += 1;
        }
        Date { year, month, day: self.days - days_before(year, month) + 1 }
    }
}

fn month_name(month: i64) -> &'static str {
    // Months are 1 to 12 by construction.
    usize::try_from(month - 1).map_or("", |index| MONTHS[index])
}

/// Days from 1970-01-01 to the first of a month.
fn days_before(year: i64, month: i64) -> i64 {
    const BEFORE_MONTH: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let earlier = year - 1;
    let leap_days = earlier.div_euclid(4) - earlier.div_euclid(100) + earlier.div_euclid(400);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let before_month = usize::try_from(month - 1).map_or(0, |index| BEFORE_MONTH[index]);
    // 477 leap days lie before 1970.
    (year - 1970) * 365 + leap_days - 477 + before_month + i64::from(is_leap && month > 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_are_written_as_c_writes_them() {
        let time = LocalTime::from_seconds(1_709_212_829);
        let format = |format: &str| time.format(format);
        assert_eq!(format("%Y-%m-%d %H:%M:%S").as_deref(), Some("2024-02-29 13:20:29"));
        assert_eq!(
            format("%A %a %B %b %e %j %I%p %y %%").as_deref(),
            Some("Thursday Thu February Feb 29 060 01PM 24 %")
        );
        assert_eq!(
            LocalTime::from_seconds(0).format("%d %b %Y, %F %T").as_deref(),
            Some("01 Jan 1970, 1970-01-01 00:00:00")
        );
        assert_eq!(LocalTime::from_seconds(0).format("%-d %-m %-H %-I").as_deref(), Some("1 1 0 12"));
        assert_eq!(LocalTime::from_seconds(-1).format("%F %T %A").as_deref(), Some("1969-12-31 23:59:59 Wednesday"));
        assert_eq!((format("%Q"), format("%"), format("%-")), (None, None, None));
    }

    #[test]
    fn every_day_of_eight_centuries_follows_the_one_before() {
        let mut before = LocalTime::from_seconds(-86_400 * 146_097).date();
        for day in -146_096..=146_097 {
            let date = LocalTime::from_seconds(86_400 * day).date();
            let next_day = (date.year, date.month, date.day) == (before.year, before.month, before.day + 1);
            let next_month = (date.year, date.month, date.day) == (before.year, before.month + 1, 1);
            let next_year = (date.year, date.month, date.day, before.month) == (before.year + 1, 1, 1, 12);
            assert!((next_day && date.day <= 31) || next_month || next_year, "day {day}");
            before = date;
        }
        assert_eq!(LocalTime::from_seconds(86_400 * 146_097).format("%F").as_deref(), Some("2370-01-01"));
    }

    #[test]
    fn the_ends_of_time_have_a_date() {
        for seconds in [i64::MIN, i64::MAX] {
            assert!(LocalTime::from_seconds(seconds).format("%F %T %A %j").is_some());
        }
    }
}
