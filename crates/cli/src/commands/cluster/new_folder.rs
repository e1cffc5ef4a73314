//! A folder that has its name only when everything in it is there.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::path::{Path, PathBuf};

use super::ClusterFailure;

/// A folder being made, for its owner alone. It has another name beside the final one until [`Self::finish`]; dropped
/// before, it is removed with all that is in it.
pub struct NewFolder {
    path: PathBuf,
    /// The name until it is whole; `None` once it is.
    partial: Option<PathBuf>,
}

impl NewFolder {
    /// Begins the folder that will be at `path`, where there is nothing or an empty folder; the folders above are made.
    pub fn begin(path: &Path) -> Result<Self, ClusterFailure> {
        let at = |error| ClusterFailure::Folder { path: path.to_owned(), error };
        let name = path.file_name().ok_or_else(|| ClusterFailure::NoName(path.to_owned()))?;
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() && fs::read_dir(path).map_err(at)?.next().is_none() => {}
            Ok(_) => return Err(ClusterFailure::Exists(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(at(error)),
        }
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
            fs::create_dir_all(above).map_err(at)?;
        }
        // The process's number keeps two that make the same folder from disturbing each other.
        let mut partial = OsString::from(name);
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = path.with_file_name(partial);
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&partial).map_err(at)?;
        Ok(Self { path: path.to_owned(), partial: Some(partial) })
    }

    /// Where to write until it is whole.
    pub fn partial(&self) -> &Path {
        self.partial.as_deref().unwrap_or(&self.path)
    }

    /// Gives the folder its name. What appeared there since [`Self::begin`] is not replaced, unless it is an empty folder.
    pub fn finish(mut self) -> Result<(), ClusterFailure> {
        use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
        // Whoever writes it later makes its lock anew; without one there is nothing to remove.
        let _ = fs::remove_file(self.partial().join(".lock"));
        fs::rename(self.partial(), &self.path).map_err(|error| match error.kind() {
            AlreadyExists | DirectoryNotEmpty | NotADirectory => ClusterFailure::Exists(self.path.clone()),
            _ => ClusterFailure::Folder { path: self.path.clone(), error },
        })?;
        self.partial = None;
        Ok(())
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Best effort: the failure that led here is what the user needs to read.
            let _ = fs::remove_dir_all(partial);
        }
    }
}
