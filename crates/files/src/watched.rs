//! A file that a running process follows: read again whenever it changed, on a thread of its own.
//!
//! A disk that does not answer, such as a network mount whose server is down, blocks that thread only: callers get an
//! error after the time limit, and at once while the thread stays blocked. The content known before is not used
//! instead.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{FileError, Stamp};

/// Longest wait for a file that is read. Local disks take microseconds.
const READ_LIMIT: Duration = Duration::from_secs(2);

/// Parsed content of a file.
pub trait Content: Sized + Send + Sync + 'static {
    /// Failure of reading.
    type Error: From<FileError> + Send + 'static;

    /// Reads the file. `known` is what it held before.
    ///
    /// # Errors
    /// The content's own; what was known before is kept then.
    fn read(path: &Path, known: Option<&Self>) -> Result<Self, Self::Error>;
}

/// A file and its last good content. Shared by reference among threads and tasks.
#[derive(Debug)]
pub struct Watched<T: Content> {
    shared: Arc<Shared<T>>,
    /// Channel to the reading thread, once it was started.
    questions: OnceLock<Sender<Question<T>>>,
}

type Question<T> = oneshot::Sender<Result<Arc<T>, <T as Content>::Error>>;

#[derive(Debug)]
struct Shared<T> {
    path: PathBuf,
    /// Of the file that `content` was read from, none where there was no file. Locked for as long as it is read.
    stamp: Mutex<Option<Stamp>>,
    /// Locked for moments.
    content: Mutex<Arc<T>>,
    /// The thread did not answer in time, and has not since.
    is_late: AtomicBool,
}

impl<T: Content> Watched<T> {
    /// Reads the file for the first time, in this thread.
    ///
    /// # Errors
    /// Those of the content.
    pub fn load(path: &Path) -> Result<Self, T::Error> {
        // Looked at before reading: a change in between is seen the next time.
        let stamp = stamp_of(path)?;
        let content = Arc::new(T::read(path, None)?);
        let (stamp, content) = (Mutex::new(stamp), Mutex::new(content));
        let shared = Shared { path: path.into(), stamp, content, is_late: AtomicBool::new(false) };
        Ok(Self { shared: Arc::new(shared), questions: OnceLock::new() })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The content that was last read well, without blocking.
    pub fn known(&self) -> Arc<T> {
        Arc::clone(&lock(&self.shared.content))
    }

    /// The content, read again in this thread if the file changed.
    ///
    /// # Errors
    /// Those of the content.
    pub fn read(&self) -> Result<Arc<T>, T::Error> {
        self.shared.refresh()
    }

    /// The content, read again in another thread if the file changed.
    ///
    /// # Errors
    /// Those of the content; [`FileError::Slow`] if the file was not read within 2 s.
    pub async fn current(&self) -> Result<Arc<T>, T::Error> {
        self.current_within(READ_LIMIT).await
    }

    async fn current_within(&self, limit: Duration) -> Result<Arc<T>, T::Error> {
        let slow = || FileError::Slow { path: self.shared.path.clone(), limit };
        if self.shared.is_late.load(Ordering::SeqCst) {
            return Err(slow().into());
        }
        let (question, answer) = oneshot::channel();
        // The thread lives for as long as this value, so it hears the question and answers it.
        let _ = self.questions()?.send(question);
        match timeout(limit, answer).await {
            Ok(Ok(read)) => read,
            _ => {
                self.shared.is_late.store(true, Ordering::SeqCst);
                Err(slow().into())
            }
        }
    }

    fn questions(&self) -> Result<&Sender<Question<T>>, FileError> {
        if let Some(questions) = self.questions.get() {
            return Ok(questions);
        }
        let (questions, asked) = channel::<Question<T>>();
        let shared = Arc::clone(&self.shared);
        let reading = move || {
            for question in asked {
                let read = shared.refresh();
                shared.is_late.store(false, Ordering::SeqCst);
                // Who asked may have stopped waiting.
                let _ = question.send(read);
            }
        };
        let started = thread::Builder::new().name("cluster-folder".into()).spawn(reading);
        started.map_err(|error| FileError::Io { path: self.shared.path.clone(), error })?;
        // Of two that were started at a time one ends at once.
        Ok(self.questions.get_or_init(|| questions))
    }
}

impl<T: Content> Shared<T> {
    fn refresh(&self) -> Result<Arc<T>, T::Error> {
        let mut stamp = lock(&self.stamp);
        let now = stamp_of(&self.path)?;
        let known = Arc::clone(&lock(&self.content));
        if now == *stamp {
            return Ok(known);
        }
        let content = Arc::new(T::read(&self.path, Some(&known))?);
        *lock(&self.content) = Arc::clone(&content);
        *stamp = now;
        Ok(content)
    }
}

/// None where there is no file.
fn stamp_of(path: &Path) -> Result<Option<Stamp>, FileError> {
    match Stamp::of(path) {
        Err(FileError::Missing { .. }) => Ok(None),
        stamp => stamp.map(Some),
    }
}

/// The values behind these locks are whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::super::{Secrecy, read, replace};
    use super::*;

    /// A text, whose reading hangs while the text is `hang`, until the test lets it go on.
    #[derive(Debug)]
    struct Text(String);

    static LET_GO: Mutex<Option<Receiver<()>>> = Mutex::new(None);

    impl Content for Text {
        type Error = FileError;

        fn read(path: &Path, _: Option<&Self>) -> Result<Self, FileError> {
            let text = read(path, Secrecy::Public)?;
            if text == "hang" {
                let let_go = LET_GO.lock().unwrap().take().unwrap();
                let_go.recv().unwrap();
            }
            Ok(Self(text))
        }
    }

    #[test]
    fn a_file_that_hangs_is_an_error_in_time_and_at_once_thereafter_until_it_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        replace(&path, "one", Secrecy::Public).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let watched: Watched<Text> = Watched::load(&path).unwrap();
        let current = |limit| runtime.block_on(watched.current_within(limit)).map(|text| text.0.clone());
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(10));
        assert_eq!(current(long).unwrap(), "one");
        replace(&path, "two", Secrecy::Public).unwrap();
        assert_eq!(current(long).unwrap(), "two");

        let (go, let_go) = sync_channel(0);
        *LET_GO.lock().unwrap() = Some(let_go);
        replace(&path, "hang", Secrecy::Public).unwrap();
        assert!(matches!(current(short), Err(FileError::Slow { .. })));
        // Nobody waits any more, however long they would.
        assert!(matches!(current(long), Err(FileError::Slow { .. })));
        assert_eq!(watched.known().0, "two");
        go.send(()).unwrap();
        // By itself, as soon as the thread is back; how soon that is nobody says.
        while current(long).is_err() {
            thread::yield_now();
        }
        assert_eq!(current(long).unwrap(), "hang");
    }
}
