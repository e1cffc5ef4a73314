//! `muser doctor` and `muser completions`.

use muser_kernels::cpu::Kernels;

use crate::common::muser;

#[test]
fn doctor_names_the_kernels_that_run_here_and_measures_memory() {
    let report: serde_json::Value = serde_json::from_str(&muser(&["doctor", "--json"]).done().stdout).unwrap();
    let names: Vec<&str> = Kernels::available().iter().map(Kernels::name).collect();
    assert_eq!(report["kernels"], serde_json::json!(names));
    assert!(report["threads"].as_u64().unwrap() > 0);
    assert!(report["read_bandwidth"].as_f64().unwrap() > 0.0, "{report}");
    let text = muser(&["doctor"]).done().stdout;
    assert!(text.contains(&format!("kernels     {}", names.last().unwrap())), "{text}");
}

#[test]
fn every_shell_s_script_knows_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = muser(&["completions", shell]).done().stdout;
        for command in [
            "run",
            "chat",
            "serve",
            "produce",
            "demo",
            "pull",
            "inspect",
            "quantize",
            "logits",
            "bench",
            "tokenize",
            "conformance",
            "doctor",
            "cluster",
            "rotate-keys",
            "config",
            "completions",
        ] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    muser(&["completions", "dosshell"]).wrong_usage();
}
