//! `muser plan`: bytes that a handoff of a prompt would move, and the expected time of each place to compute it.
//!
//! Reads only the head of a model file, computes nothing and contacts no producer.

use std::io::{self, Write};
use std::ops::Range;

use muser_cluster::handoff::HandoffBytes;
use muser_files::FileError;
use muser_kernels::attention::KvLayout;
use muser_kv::{CacheSpec, LayerSpec, PAGE_ROWS, PageLayout};
use muser_model::{CacheError, LoadError, read_config};
use muser_placement::{Candidate, Choice, Place, Policy, PolicyFileError, PolicySettings, Trial};
use muser_trust::identity::ClusterFolder;
use serde::Serialize;

use crate::failure::Failure;
use crate::member_error::MemberError;
use crate::model;
use crate::settings::plan::{Geometry, PlanArgs};
use crate::usage::UsageError;

/// The command's output. Sizes in bytes.
#[derive(Serialize)]
struct Report {
    prompt_tokens: usize,
    /// All but the last token's, which is computed here in any case.
    rows: usize,
    held_tokens: usize,
    held_pages: usize,
    kv: &'static str,
    page_rows: usize,
    page_bytes: u32,
    groups: Vec<Group>,
    row_bytes: u64,
    rounding_bytes: u64,
    payload_bytes: u64,
    framing: Framing,
    wire_bytes: u64,
    /// Bytes of rows and of pages without anything held.
    whole_row_bytes: u64,
    whole_payload_bytes: u64,
    costs: Option<Costs>,
}

/// Layers whose pages travel together.
#[derive(Serialize)]
struct Group {
    layers: Vec<u16>,
    window: Option<u32>,
    first_page: u32,
    end_page: u32,
    pages: u64,
}

#[derive(Serialize)]
struct Framing {
    frames: u64,
    header_bytes: u64,
    digest_bytes: u64,
    range_bytes: u64,
    entry_bytes: u64,
}

/// Expected time of each place.
#[derive(Serialize)]
struct Costs {
    /// The identity of the model and layout that was measured.
    model: String,
    chosen: Option<String>,
    candidates: Vec<Cost>,
    #[serde(skip)]
    shown: Vec<String>,
}

#[derive(Serialize)]
struct Cost {
    place: String,
    queue_ms: Option<f64>,
    compute_ms: Option<f64>,
    wire_ms: Option<f64>,
    fixed_ms: Option<f64>,
    total_ms: Option<f64>,
}

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<(), Failure> {
    let spec = spec(args)?;
    let (tokens, most) = (args.prompt_tokens, spec.context());
    if tokens < 2 || tokens > most {
        return Err(UsageError::PlannedLength { tokens, max: most }.into());
    }
    let rows = tokens - 1;
    let held_pages = args.held_tokens / PAGE_ROWS;
    if held_pages > rows / PAGE_ROWS {
        let whole = rows / PAGE_ROWS * PAGE_ROWS;
        let held = args.held_tokens;
        return Err(UsageError::HeldTokens { held, tokens, whole }.into());
    }
    let plan = |held| HandoffBytes::of(&spec, rows, held, model::CHUNK_ROWS);
    let (bytes, whole) = (plan(held_pages).map_err(MemberError::Plan)?, plan(0).map_err(MemberError::Plan)?);
    let mut report = report(args, &spec, (&bytes, &whole));
    if let Some(folder) = &args.cluster {
        let missing = (held_pages * PAGE_ROWS) as u64..rows as u64;
        report.costs = Some(costs(&ClusterFolder::new(folder), &missing, bytes.payload_bytes())?);
    }
    let mut out = io::stdout().lock();
    let written = if args.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from).and_then(|()| writeln!(out))
    } else {
        print(&mut out, &report)
    };
    written.map_err(Failure::Stdout)
}

/// The shape of the model's cache.
fn spec(args: &PlanArgs) -> Result<CacheSpec, Failure> {
    let kv = KvLayout::from(args.kv);
    let cache = |layers: Vec<LayerSpec>, (heads, head_dim): (usize, usize), context: usize| {
        let page = PageLayout::new(kv, heads, head_dim).map_err(CacheError::from)?;
        let spec = CacheSpec::new(layers, page, context, CacheSpec::EXTRA_PAGES_DEFAULT).map_err(CacheError::from)?;
        Ok::<_, Failure>(spec)
    };
    if let Some(Geometry::MuseGlimmer30b) = args.geometry {
        // Three local layers, then a global one, thirteen times.
        let layer = |index| if index % 4 == 3 { LayerSpec::GLOBAL } else { LayerSpec::local(2048) };
        return cache((0..52).map(layer).collect(), (2, 128), 131_072);
    }
    let files = model::open(args.model.as_deref(), &args.hub)?;
    let config = read_config(&files.metadata()).map_err(LoadError::from)?;
    let layers = config.layers.iter().map(|layer| LayerSpec { window: layer.window }).collect();
    cache(layers, (config.kv_heads, config.head_dim), config.context)
}

fn report(args: &PlanArgs, spec: &CacheSpec, (bytes, whole): (&HandoffBytes, &HandoffBytes)) -> Report {
    let plan = &bytes.plan;
    let group = |layers: &Vec<u16>| {
        // The layers of a group are alike, and no group is empty.
        let first = usize::from(layers.first().copied().unwrap_or_default());
        let pages = &plan.layers()[first];
        Group {
            layers: layers.clone(),
            window: spec.layers()[first].window,
            first_page: pages.start,
            end_page: pages.end,
            pages: pages.len() as u64 * layers.len() as u64,
        }
    };
    let held_pages = args.held_tokens / PAGE_ROWS;
    Report {
        prompt_tokens: args.prompt_tokens,
        rows: args.prompt_tokens - 1,
        held_tokens: held_pages * PAGE_ROWS,
        held_pages,
        kv: match KvLayout::from(args.kv) {
            KvLayout::Q8 => "q8",
            KvLayout::F16 => "f16",
        },
        page_rows: PAGE_ROWS,
        page_bytes: plan.page_bytes(),
        groups: plan.groups().iter().map(group).collect(),
        row_bytes: bytes.row_bytes,
        rounding_bytes: bytes.rounding_bytes,
        payload_bytes: bytes.payload_bytes(),
        framing: Framing {
            frames: bytes.framing.frames,
            header_bytes: bytes.framing.header_bytes,
            digest_bytes: bytes.framing.digest_bytes,
            range_bytes: bytes.framing.range_bytes,
            entry_bytes: bytes.framing.entry_bytes,
        },
        wire_bytes: bytes.wire_bytes(),
        whole_row_bytes: whole.row_bytes,
        whole_payload_bytes: whole.payload_bytes(),
        costs: None,
    }
}

/// Expected time of every place in the policy file, with empty queues.
fn costs(folder: &ClusterFolder, missing: &Range<u64>, payload_bytes: u64) -> Result<Costs, Failure> {
    let policy = match Policy::load(&folder.policy(), PolicySettings::default(), 0) {
        Ok(policy) => policy,
        Err(PolicyFileError::File(FileError::Missing { path })) => {
            return Err(MemberError::NothingMeasured { path }.into());
        }
        Err(reason) => return Err(MemberError::Policy(reason).into()),
    };
    let mut places: Vec<Place> = policy.measured().collect();
    places.sort_unstable();
    let candidate = |place: &Place| {
        let (compute, wire_bytes) = match place {
            Place::Local => (missing.start..missing.end + 1, 0),
            Place::Producer(_) => (missing.clone(), payload_bytes),
        };
        Candidate { place: *place, compute, wire_bytes, queue_ms: 0.0, trial: Trial::Barred }
    };
    let candidates: Vec<Candidate> = places.iter().map(candidate).collect();
    let choice = policy.choose(&candidates, 0);
    let explanations = choice.as_ref().map_or(&[][..], |Choice { explanations, .. }| explanations);
    let name = |place| match place {
        Place::Local => "local".to_owned(),
        Place::Producer(address) => address.to_string(),
    };
    let cost = |(place, explanation): (&Place, &muser_placement::Explanation)| {
        let of = |term: fn(muser_placement::Cost) -> f64| explanation.cost.map(term);
        Cost {
            place: name(*place),
            queue_ms: of(|cost| cost.queue_ms),
            compute_ms: of(|cost| cost.compute_ms),
            wire_ms: of(|cost| cost.wire_ms),
            fixed_ms: of(|cost| cost.fixed_ms),
            total_ms: of(|cost| cost.total_ms),
        }
    };
    Ok(Costs {
        model: policy.model().iter().map(|byte| format!("{byte:02x}")).collect(),
        chosen: choice.as_ref().map(|choice| name(choice.place)),
        candidates: places.iter().zip(explanations).map(cost).collect(),
        shown: explanations.iter().map(ToString::to_string).collect(),
    })
}

fn print(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let Report { prompt_tokens, rows, held_tokens, kv, page_bytes, framing, .. } = report;
    writeln!(out, "prompt    {prompt_tokens} tokens: {rows} rows, as the last token is computed here in any case")?;
    writeln!(out, "held      {held_tokens} rows, in {} whole pages", report.held_pages)?;
    writeln!(out, "layout    {kv}: {page_bytes} bytes for a page of {PAGE_ROWS} rows of a layer")?;
    for (index, Group { layers, window, first_page, end_page, pages }) in report.groups.iter().enumerate() {
        let kind = window.map_or("global".to_owned(), |window| format!("window of {window}"));
        let (count, each) = (layers.len(), end_page - first_page);
        writeln!(
            out,
            "group {index}   {count} layers, {kind}: pages {first_page}..{end_page}, {each} each, {pages} in all"
        )?;
    }
    let line = |out: &mut dyn Write, name: &str, bytes: u64, says: &str| writeln!(out, "{name:<10}{bytes:>16}  {says}");
    line(out, "rows", report.row_bytes, "bytes of exactly the rows that will be read")?;
    line(out, "+ pages", report.rounding_bytes, "as pages travel whole")?;
    line(out, "= payload", report.payload_bytes, "")?;
    line(out, "+ headers", framing.header_bytes, &format!("of {} frames", framing.frames))?;
    line(out, "+ digests", framing.digest_bytes, "of frames")?;
    line(out, "+ ranges", framing.range_bytes, "what a frame says of its pages")?;
    line(out, "+ entries", framing.entry_bytes, "in front of each page")?;
    line(out, "= wire", report.wire_bytes, "without packing, encryption and other messages")?;
    if report.held_tokens > 0 {
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole as f64;
        let (rows, payload) =
            (share(report.row_bytes, report.whole_row_bytes), share(report.payload_bytes, report.whole_payload_bytes));
        writeln!(out, "delta     {rows:.4} % of the rows' bytes with nothing held, {payload:.4} % of the pages'")?;
    }
    if let Some(Costs { model, shown, .. }) = &report.costs {
        writeln!(out, "expected  by what was measured of the model with identity {model}")?;
        shown.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
    }
    Ok(())
}
