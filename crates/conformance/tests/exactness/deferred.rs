//! The deferred CPU: when it executes, and how it finds pages again.

use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_conformance::backend::{Backend, CpuVariant};
use muser_conformance::deferred::{DeferredBackend, DeferredCpu, DeferredVariant};
use muser_conformance::models::{MIXES, generated, glimmer_spec, tokens};
use muser_conformance::suite::Run;
use muser_kv::KvLayout;
use muser_model::{Device, DeviceError, Executor, Model};
use muser_weights::gguf::ModelFiles;

fn executor(copies_max: usize) -> Executor<DeferredCpu> {
    let backend = DeferredBackend::of(vec![DeferredVariant { cpu: CpuVariant::plain(), copies_max }]);
    let file = generated(&glimmer_spec(&MIXES[1], 100, &[true, false], 512), &MIXES[1]);
    let model: Model<DeferredCpu> = backend.load(&ModelFiles::from_bytes(file).unwrap()).unwrap();
    backend.executor(&Arc::new(model), 0, NonZeroUsize::new(128).unwrap()).unwrap()
}

fn device() -> DeferredCpu {
    let executor = executor(1);
    DeferredCpu::new(executor.model().spec(), CpuVariant::plain(), 1).unwrap()
}

#[test]
fn a_copy_is_made_once_for_each_page_and_found_at_every_later_step() {
    let mut executor = executor(usize::MAX);
    let mut run = Run::begin(&executor, KvLayout::Q8).unwrap();
    run.extend(&mut executor, &tokens(128, 1), 128).unwrap();
    run.extend(&mut executor, &tokens(60, 2), 1).unwrap();
    let counts = executor.device().copy_counts();
    // Three pages of each of two layers; of 60 steps each sees all of them, but the first, which begins the third.
    assert_eq!((counts.made, counts.found), (6, 60 * 6 - 2), "{counts:?}");
}

#[test]
fn a_page_that_another_device_has_written_to_is_copied_again() {
    let (mut one, mut other) = (executor(usize::MAX), executor(usize::MAX));
    let mut run = Run::begin(&one, KvLayout::Q8).unwrap();
    run.extend(&mut one, &tokens(100, 1), 100).unwrap();
    run.extend(&mut other, &tokens(1, 2), 1).unwrap();
    let before = one.device().copy_counts().made;
    run.extend(&mut one, &tokens(1, 3), 1).unwrap();
    // The other device has taken the hints of all pages, and changed the last of each layer.
    assert!(one.device().copy_counts().made >= before + 2);
}

#[test]
fn nothing_executes_before_the_graph_waits() {
    let mut device = device();
    let mut rows = device.new_rows(2, 2).unwrap();
    device.write_rows(&[1.0, 2.0, 3.0, 4.0], &mut rows).unwrap();
    assert!(format!("{device:?}").contains("recorded: 1"), "{device:?}");
    let mut out = [0.0; 4];
    device.read_rows(&rows, &mut out).unwrap();
    assert_eq!(out, [1.0, 2.0, 3.0, 4.0]);
    assert!(format!("{device:?}").contains("recorded: 0"), "{device:?}");
}

#[test]
fn a_result_that_is_overwritten_unread_fails_the_next_wait_by_name() {
    let mut device = device();
    let mut rows = device.new_rows(1, 2).unwrap();
    device.write_rows(&[1.0, 2.0], &mut rows).unwrap();
    device.write_rows(&[3.0, 4.0], &mut rows).unwrap();
    let refused = device.row_status().unwrap_err();
    assert!(
        matches!(&refused, DeviceError::Failed { reason, .. } if reason.contains("write_rows overwrites")),
        "{refused}"
    );
}

#[test]
fn contents_that_nothing_in_the_step_wrote_fail_the_read() {
    let mut device = device();
    let rows = device.new_rows(1, 2).unwrap();
    let refused = device.read_rows(&rows, &mut [0.0; 2]).unwrap_err();
    assert!(refused.to_string().contains("read_rows reads a buffer that nothing"), "{refused}");
}
