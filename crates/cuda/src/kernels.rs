//! Machine code of the kernels, as `scripts/build_cuda_kernels.sh` built it, and its loading.
//!
//! Each `kernels/NAME.cu` is a unit of its own with a `NAME.fatbin` and the hash of its sources beside it; a test recomputes
//! the hashes, so that the checked-in code is the code of the checked-in sources.

use std::collections::HashMap;

use crate::driver::{Context, DriverError, Function, Module};
use crate::queue;

/// A unit of machine code.
struct Unit {
    fatbin: &'static [u8],
    /// Its `extern "C"` kernels.
    kernels: &'static [&'static str],
}

/// Machine code of `kernels/$name.cu` with the kernels of `$kernels`.
macro_rules! unit {
    ($name:literal, $kernels:expr) => {
        Unit { fatbin: include_bytes!(concat!("../kernels/", $name, ".fatbin")), kernels: $kernels }
    };
}

/// Every unit.
const UNITS: &[Unit] = &[
    unit!("attend_f16", queue::attend::KERNELS_F16),
    unit!("attend_merge", queue::attend::KERNELS_MERGE),
    unit!("attend_prefill", queue::attend::KERNELS_PREFILL),
    unit!("attend_q8", queue::attend::KERNELS_Q8),
    unit!("diagnostics", queue::diagnostics::KERNELS),
    unit!("gemv", queue::matmul::ONE_ROW_KERNELS),
    unit!("gemv_scaled", queue::matmul::ONE_ROW_SCALED_KERNELS),
    unit!("heads", queue::heads::KERNELS),
    unit!("matmul", queue::matmul::KERNELS),
    unit!("matmul_half", queue::matmul::HALF_KERNELS),
    unit!("matmul_planes", queue::matmul::PLANES_KERNELS),
    unit!("matmul_scaled_tiles", queue::matmul::SCALED_TILES_KERNELS),
    unit!("matmul_small", queue::matmul::SMALL_KERNELS),
    unit!("pages", queue::pages::KERNELS),
    unit!("prepare", queue::prepare::KERNELS),
    unit!("quantise", queue::quantise::KERNELS),
    unit!("rows", queue::rows::KERNELS),
];

/// All kernels, loaded into a context.
#[derive(Debug)]
pub struct GpuKernels {
    functions: HashMap<&'static str, Function>,
}

impl GpuKernels {
    /// Loads every kernel; on other chips than Hopper the driver compiles them first, which takes seconds.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn load(context: &Context) -> Result<Self, DriverError> {
        let mut functions = HashMap::new();
        for unit in UNITS {
            let module = Module::load(context, unit.fatbin)?;
            for &name in unit.kernels {
                functions.insert(name, module.function(name)?);
            }
        }
        Ok(Self { functions })
    }

    /// The kernel `name`.
    pub(crate) fn function(&self, name: &'static str) -> Result<&Function, DriverError> {
        self.functions.get(name).ok_or_else(|| DriverError::MissingKernel { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
    }

    fn source(name: &str) -> String {
        fs::read_to_string(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The unit and the headers that it includes, directly or not, sorted.
    fn sources_of(unit: &str) -> BTreeSet<String> {
        let (mut pending, mut all) = (vec![unit.to_owned()], BTreeSet::new());
        while let Some(name) = pending.pop() {
            let text = source(&name);
            if all.insert(name) {
                let headers = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
                pending.extend(headers.map(str::to_owned));
            }
        }
        all
    }

    fn units_on_disk() -> Vec<String> {
        let names = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter_map(|name| name.strip_suffix(".cu").map(str::to_owned)).collect()
    }

    #[test]
    fn the_machine_code_was_made_from_the_sources_beside_it() {
        for unit in units_on_disk() {
            let mut bytes = source("flags");
            bytes.extend(sources_of(&format!("{unit}.cu")).iter().map(|name| source(name)));
            let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes.as_bytes());
            let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            let recorded = source(&format!("{unit}.sha256"));
            assert_eq!(recorded.trim(), hash, "{unit}.fatbin is stale: run scripts/build_cuda_kernels.sh");
        }
    }

    #[test]
    fn every_unit_on_disk_is_embedded_and_every_kernel_of_it_is_listed() {
        let on_disk = units_on_disk();
        assert_eq!(on_disk.len(), UNITS.len(), "{on_disk:?}");
        let mut defined: Vec<String> = Vec::new();
        for name in on_disk.iter().flat_map(|unit| sources_of(&format!("{unit}.cu"))).collect::<BTreeSet<_>>() {
            let text = source(&name);
            let names =
                text.split("extern \"C\" __global__").skip(1).filter_map(|rest| rest.split('(').find_map(name_of));
            defined.extend(names.map(str::to_owned));
        }
        defined.sort();
        let mut listed: Vec<&str> = UNITS.iter().flat_map(|unit| unit.kernels).copied().collect();
        listed.sort_unstable();
        assert_eq!(defined, listed);
    }

    /// The kernel's name, if `part` of its declaration ends with it; `__launch_bounds__` comes before with arguments.
    fn name_of(part: &str) -> Option<&str> {
        let name = part.split(|c: char| !(c.is_alphanumeric() || c == '_')).next_back()?;
        (!name.is_empty() && name != "__launch_bounds__").then_some(name)
    }
}
