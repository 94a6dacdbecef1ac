//! `uzswap top`: the runs of the user on the whole terminal, kept up to date.
//!
//! ```text
//!  Screen (what was seen, and a history per run) <── look: once a second, all runs at once
//!     └──> draw: a line of totals, then per run a head, a graph of its budget, a table of its processes
//! ```
//! The terminal is put back in order however this ends: by q, by Ctrl-C, by a signal, by a panic
//! (ratatui's hook does that one, before the process stops).

use std::collections::{HashMap, VecDeque};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table};

use super::client::Runs;
use super::commands::fault_rates;
use super::state::{ProcessState, RunState};
use crate::duration;
use crate::procfs::beginning;
use crate::size::human;
use crate::{Failure, program::reason};

/// Looks that a graph remembers of a run: more than the columns of a wide terminal.
const HISTORY_MOST: usize = 512;
/// The time between two looks for keys and signals.
const POLL: Duration = Duration::from_millis(100);
const SHORTEST_DELAY: Duration = Duration::from_millis(100);
/// Columns that a run's command line has at least, on a screen too narrow for it and the figures.
const COMMAND_LEAST: usize = 12;
/// Lines of a graph.
const GRAPH_LINES: u16 = 3;

/// Arguments of `uzswap top`.
#[derive(clap::Args, Debug)]
pub struct TopArguments {
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", allow_hyphen_values = true)]
    delay: String,
}

/// The picture that is shown.
#[derive(Default)]
struct Screen {
    runs: Vec<RunState>,
    silent: Vec<u32>,
    rates: HashMap<(u32, u32), u64>,
    /// Thousandths of the limit that each run used, oldest first.
    history: HashMap<u32, VecDeque<u64>>,
    /// Runs above the first that is shown.
    scroll: usize,
}

pub fn top(arguments: TopArguments) -> Result<u8, Failure> {
    let delay = duration::parse(&arguments.delay)
        .map_err(|why| Failure::usage(format!("--delay: {why}")))?
        .max(SHORTEST_DELAY);
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal: 'uzswap ps' prints the same once".to_string(),
        ));
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        let _ = signal_hook::flag::register(signal, ended.clone());
    }
    let broken = |e: std::io::Error| Failure::environment(format!("the terminal: {}", reason(&e)));
    let mut terminal = ratatui::try_init().map_err(broken)?;
    let result = watch(&mut terminal, delay, &ended).map_err(broken);
    ratatui::restore();
    result.map(|()| 0)
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    delay: Duration,
    ended: &AtomicBool,
) -> std::io::Result<()> {
    let mut screen = Screen::default();
    let mut looked = Instant::now();
    let mut is_new = true;
    screen.look(Runs::find(), Duration::ZERO);
    while !ended.load(Ordering::Relaxed) {
        if is_new {
            terminal.draw(|frame| screen.draw(frame))?;
        }
        let left = delay.saturating_sub(looked.elapsed());
        // A signal interrupts the wait, and is seen at the loop's head.
        let has_event = match event::poll(left.min(POLL)) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if has_event && !screen.react(&event::read()?) {
            break;
        }
        is_new = has_event || looked.elapsed() >= delay;
        if looked.elapsed() >= delay {
            let (runs, now) = (Runs::find(), Instant::now());
            screen.look(runs, now - looked);
            looked = now;
        }
    }
    Ok(())
}

impl Screen {
    /// Takes over what was found, so long after the last time.
    fn look(&mut self, found: Runs, elapsed: Duration) {
        self.rates = fault_rates(&self.runs, &found.states, elapsed);
        self.history.retain(|run, _| found.states.iter().any(|r| r.run == *run));
        for run in &found.states {
            let history = self.history.entry(run.run).or_default();
            history.push_back(share(run.used_bytes(), run.limit_bytes));
            if history.len() > HISTORY_MOST {
                history.pop_front();
            }
        }
        (self.runs, self.silent) = (found.states, found.silent);
        self.scroll = self.scroll.min(self.runs.len().saturating_sub(1));
    }

    /// Handles an event. False: the user wants to leave.
    fn react(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return true };
        if key.kind == KeyEventKind::Release {
            return true;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Down | KeyCode::Char('j') => {
                self.scroll = (self.scroll + 1).min(self.runs.len().saturating_sub(1));
            }
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            _ => {}
        }
        true
    }

    fn draw(&self, frame: &mut Frame) {
        let [head, body] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()), head);
        let mut area = body;
        for run in &self.runs[self.scroll.min(self.runs.len())..] {
            let wanted = 1 + GRAPH_LINES + 1 + run.processes.len() as u16 + 1;
            let lines = wanted.min(area.height);
            // A run of which nothing but its head would be seen waits for a larger screen.
            if lines < 2 {
                break;
            }
            let [own, rest] =
                Layout::vertical([Constraint::Length(lines), Constraint::Min(0)]).areas(area);
            self.draw_run(frame, own, run);
            area = rest;
        }
    }

    fn head(&self) -> Line<'_> {
        let used: u64 = self.runs.iter().map(RunState::used_bytes).sum();
        let processes: usize = self.runs.iter().map(|r| r.processes.len()).sum();
        let mut text = format!(
            "uzswap top: {} runs, {processes} processes, {} in memory",
            self.runs.len(),
            human(used)
        );
        if let Some(run) = self.silent.first() {
            text += &format!(", run {run} does not answer (stopped?)");
        }
        Line::from(vec![
            Span::raw(text),
            Span::styled("   q quits", Style::new().add_modifier(Modifier::DIM)),
        ])
    }

    fn draw_run(&self, frame: &mut Frame, area: Rect, run: &RunState) {
        let parts = [Constraint::Length(1), Constraint::Length(GRAPH_LINES), Constraint::Min(0)];
        let [head, graph, table] = Layout::vertical(parts).areas(area);
        let used = run.used_bytes();
        let (name, figures) = (
            format!("run {}  ", run.run),
            format!(
                "  {} of {} ({} %)  {}",
                human(used),
                human(run.limit_bytes),
                share(used, run.limit_bytes) / 10,
                clock(run.age),
            ),
        );
        // However long the command line is, the figures are seen.
        let room = usize::from(head.width).saturating_sub(name.len() + figures.len());
        let title = name + &cut(&run.command.join(" "), room.max(COMMAND_LEAST)) + &figures;
        frame.render_widget(
            Paragraph::new(title).style(Style::new().add_modifier(Modifier::REVERSED)),
            head,
        );
        let width = graph.width as usize;
        let history: Vec<u64> = self.history.get(&run.run).map_or(Vec::new(), |h| {
            h.iter().skip(h.len().saturating_sub(width)).copied().collect()
        });
        let sparkline =
            Sparkline::default().data(&history).max(1000).style(Style::new().fg(Color::Cyan));
        frame.render_widget(sparkline, graph);
        let rows = run.processes.iter().map(|p| self.row(run, p));
        let names = [
            "PID",
            "NAME",
            "STATE",
            "RESIDENT",
            "COMPRESSED",
            "WRITTEN",
            "RATIO",
            "FAULTS/s",
            "SHARE",
        ];
        let widths = [8, 16, 8, 10, 10, 10, 7, 10, 7].map(Constraint::Length);
        let header = Row::new(names).style(Style::new().add_modifier(Modifier::BOLD));
        frame.render_widget(Table::new(rows, widths).header(header), table);
    }

    fn row(&self, run: &RunState, p: &ProcessState) -> Row<'static> {
        let share = share(p.used_bytes, run.limit_bytes);
        let cells = p.cells(self.rates.get(&(run.run, p.pid)).copied().unwrap_or(0));
        let share = format!("{}.{} %", share / 10, share % 10);
        Row::new(cells.into_iter().chain([share]).map(Cell::from))
    }
}

/// The beginning of a text, of so many columns at most.
fn cut(text: &str, columns: usize) -> String {
    const MORE: &str = "...";
    let width = |text: &str| Span::raw(text).width();
    // No character takes more than four bytes and fewer than one column, but for those that join
    // others; of these some are left out.
    let text = beginning(text, 4 * (columns + 1));
    if width(text) <= columns {
        return text.to_string();
    }
    let mut shown = String::new();
    for c in text.chars() {
        shown.push(c);
        if width(&shown) + MORE.len() > columns {
            shown.pop();
            break;
        }
    }
    shown + MORE
}

/// Thousandths of a limit.
fn share(used: u64, limit: u64) -> u64 {
    (used as u128 * 1000 / u128::from(limit.max(1))) as u64
}

/// How long a run runs: `4:07`, `3:04:07`.
fn clock(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds / 3600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;

    fn found(runs: u32, processes: u32) -> Runs {
        let process = |pid| ProcessState {
            pid,
            name: "python3".into(),
            mechanism: Some("userfaultfd".into()),
            resident_bytes: 100 << 20,
            used_bytes: 128 << 20,
            needed_bytes: 256 << 20,
            ..Default::default()
        };
        let run = |run| RunState {
            run,
            command: vec!["/usr/bin/python3".into(), "x.py".into()],
            limit_bytes: 512 << 20,
            age: Duration::from_secs(3661),
            processes: (0..processes).map(|p| process(run + p + 1)).collect(),
        };
        Runs {
            states: (1..=runs).map(|n| run(n * 100)).collect(),
            silent: vec![7],
            foreign: Vec::new(),
        }
    }

    fn drawn(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line =
            |y| (0..width).map(|x| buffer[(x, y)].symbol().to_string()).collect::<String>() + "\n";
        (0..height).map(line).collect()
    }

    #[test]
    fn the_screen_shows_runs_and_their_processes() {
        let mut screen = Screen::default();
        screen.look(found(2, 2), Duration::from_secs(1));
        let text = drawn(&screen, 120, 40);
        for word in [
            "2 runs, 4 processes",
            "512 MiB in memory",
            "run 7 does not answer",
            "run 100",
            "run 200",
        ] {
            assert!(text.contains(word), "no '{word}' in\n{text}");
        }
        for word in ["256 MiB of 512 MiB (50 %)", "1:01:01", "201", "100 MiB", "2.0x", "25.0 %"] {
            assert!(text.contains(word), "no '{word}' in\n{text}");
        }
    }

    #[test]
    fn a_long_command_line_leaves_the_figures_on_the_screen() {
        let mut screen = Screen::default();
        for word in ["x".repeat(200_000), "\u{4e2d}".repeat(9000), "\u{301}".repeat(9000)] {
            let mut runs = found(1, 2);
            runs.states[0].command.push(word);
            screen.look(runs, Duration::from_secs(1));
            let text = drawn(&screen, 100, 20);
            assert!(text.contains("run 100  /usr/bin/python3 x.py "), "{text}");
            assert!(text.contains("256 MiB of 512 MiB (50 %)  1:01:01"), "{text}");
        }
        assert_eq!(cut("python3 x.py", 12), "python3 x.py");
        assert_eq!(cut("python3 xx.py", 12), "python3 x...");
    }

    #[test]
    fn it_fits_any_size() {
        let mut screen = Screen::default();
        drawn(&screen, 80, 24);
        for _ in 0..2 * HISTORY_MOST {
            screen.look(found(30, 3), Duration::from_secs(1));
        }
        for (width, height) in [(1, 1), (2, 3), (20, 5), (80, 24), (300, 100)] {
            drawn(&screen, width, height);
        }
        assert_eq!(screen.history[&100].len(), HISTORY_MOST);
        screen.look(found(0, 0), Duration::from_secs(1));
        assert!(screen.history.is_empty(), "what has ended is forgotten");
    }

    #[test]
    fn keys() {
        let mut screen = Screen::default();
        screen.look(found(3, 1), Duration::from_secs(1));
        let mut press = |code, modifiers| screen.react(&Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        assert!(
            press(KeyCode::Char('c'), none) && !press(KeyCode::Char('c'), KeyModifiers::CONTROL)
        );
        assert!(!press(KeyCode::Char('q'), none) && !press(KeyCode::Esc, none));
        for _ in 0..9 {
            assert!(press(KeyCode::Down, none));
        }
        assert!(press(KeyCode::Up, none));
        assert_eq!(screen.scroll, 1);
        assert!(screen.react(&Event::Resize(3, 3)));
        screen.look(found(1, 1), Duration::from_secs(1));
        assert_eq!(screen.scroll, 0);
    }
}
