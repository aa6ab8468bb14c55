//! An engine that says what it is told to, step by step, and a byte-level text side: what real engines do at the API's
//! edges can be forced exactly.

use engine::{
    EngineError, EngineStats, Event, EventSink, FinishReason, Request, RequestId, TokenLogprobs, Usage,
};
use model::{ChatTemplate, EncodeOptions, GenerationDefaults, RenderOptions};
use server::{Backend, Text, TextError};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub const BOS: u32 = 256;
pub const EOS: u32 = 257;
/// Tokens of several bytes, from 258 on.
pub const WORDS: [&[u8]; 8] =
    [b"hello", b" world", b"ST", b"OP", "\u{20ac}".as_bytes(), b"\xf0\x9f", b"\x98\x80", b"STOP and go"];
pub const HELLO: u32 = 258;
pub const WORLD: u32 = 259;
pub const ST: u32 = 260;
pub const OP: u32 = 261;
pub const EURO: u32 = 262;
pub const SMILE_1: u32 = 263;
pub const SMILE_2: u32 = 264;
pub const STOP_AND_GO: u32 = 265;
pub const VOCABULARY: u32 = 266;
/// In a script: the engine reports an error.
pub const FAIL: u32 = u32::MAX;
/// In a script: the engine drops the request without a word.
pub const DROP: u32 = u32::MAX - 1;

type Script = Box<dyn Fn(&Request) -> Vec<u32> + Send + Sync>;

/// How the engine behaves.
pub struct Behaviour {
    pub step: Duration,
    pub slots: usize,
    pub max_queue: usize,
    pub prefill_chunk: usize,
    pub max_context: u32,
    /// The tokens of a request; after them comes the end of text
    pub script: Script,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            step: Duration::from_micros(200),
            slots: 16,
            max_queue: 64,
            prefill_chunk: 64,
            max_context: 256,
            script: Box::new(|_| vec![HELLO, WORLD]),
        }
    }
}

struct Job {
    request: Request,
    sink: Box<dyn EventSink>,
    script: Vec<u32>,
    prefilled: usize,
    started: bool,
    generated: u32,
}

#[derive(Default)]
struct Queues {
    waiting: VecDeque<Job>,
    running: Vec<Job>,
    cancels: Vec<RequestId>,
    stats: EngineStats,
    seen: Vec<Request>,
    ended: bool,
}

pub struct Scripted {
    behaviour: Behaviour,
    queues: Mutex<Queues>,
    news: Condvar,
    /// While set, requests start but never get a token
    pub stuck: AtomicBool,
}

impl Scripted {
    pub fn start(behaviour: Behaviour) -> Arc<Self> {
        let engine = Arc::new(Self {
            behaviour,
            queues: Mutex::default(),
            news: Condvar::new(),
            stuck: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&engine);
        std::thread::spawn(move || {
            while let Some(engine) = weak.upgrade() {
                let busy = engine.pass();
                if busy {
                    std::thread::sleep(engine.behaviour.step);
                } else {
                    let queues = engine.queues.lock().unwrap();
                    let _ = engine.news.wait_timeout(queues, Duration::from_millis(20)).unwrap();
                }
            }
        });
        engine
    }

    pub fn seen(&self) -> Vec<Request> {
        self.queues.lock().unwrap().seen.clone()
    }

    pub fn end(&self) {
        self.queues.lock().unwrap().ended = true;
    }

    fn pass(&self) -> bool {
        let mut queues = self.queues.lock().unwrap();
        let q = &mut *queues;
        let cancels = std::mem::take(&mut q.cancels);
        let gone = |job: &Job| cancels.contains(&job.request.id) || job.sink.is_closed();
        let jobs = q.waiting.drain(..).collect::<Vec<_>>();
        for job in jobs {
            if gone(&job) {
                finish(&job, FinishReason::Cancelled, &mut q.stats);
            } else {
                q.waiting.push_back(job);
            }
        }
        q.running.retain(|job| {
            let gone = gone(job);
            if gone {
                finish(job, FinishReason::Cancelled, &mut q.stats);
            }
            !gone
        });
        while q.running.len() < self.behaviour.slots {
            let Some(job) = q.waiting.pop_front() else { break };
            q.running.push(job);
        }
        let stuck = self.stuck.load(Ordering::Relaxed);
        let chunk = self.behaviour.prefill_chunk;
        q.running.retain_mut(|job| advance(job, chunk, stuck, &mut q.stats));
        q.stats.running = q.running.len() as u32;
        q.stats.waiting = q.waiting.len() as u32;
        q.stats.steps += 1;
        q.stats.kv_pages = 100;
        q.stats.kv_pages_used = q.stats.running;
        !q.running.is_empty()
    }
}

fn finish(job: &Job, reason: FinishReason, stats: &mut EngineStats) {
    match reason {
        FinishReason::Cancelled => stats.finished_cancelled += 1,
        FinishReason::Stop { .. } => stats.finished_stop += 1,
        FinishReason::Length => stats.finished_length += 1,
        FinishReason::Error(_) => stats.finished_error += 1,
    }
    let ended_by_token = matches!(reason, FinishReason::Stop { .. });
    let usage = Usage {
        prompt_tokens: job.request.prompt.len() as u32,
        completion_tokens: job.generated + u32::from(ended_by_token),
        ..Usage::default()
    };
    let _ = job.sink.send(Event::Finished { reason, usage });
}

fn logprobs(id: u32, top: u32) -> TokenLogprobs {
    let others = (0..top).map(|i| ((id + i) % VOCABULARY, -0.5 - i as f32));
    TokenLogprobs { logprob: -0.5, rank: 0, top: others.collect() }
}

/// One pass of one request; false when it ended.
fn advance(job: &mut Job, chunk: usize, stuck: bool, stats: &mut EngineStats) -> bool {
    let request = &job.request;
    if !job.started {
        job.started = true;
        let _ =
            job.sink.send(Event::Started { prompt_tokens: request.prompt.len() as u32, cached_tokens: 0 });
    }
    if stuck {
        return true;
    }
    if job.prefilled < request.prompt.len() {
        job.prefilled += chunk;
        if job.prefilled < request.prompt.len() {
            return true;
        }
        if let Some(top) = request.prompt_logprobs {
            for (index, &id) in request.prompt.iter().enumerate() {
                let logprobs = (index > 0).then(|| logprobs(id, top));
                let index = index as u32;
                let _ = job.sink.send(Event::PromptToken { index, id, logprobs });
            }
        }
    }
    if job.generated == request.max_tokens {
        finish(job, FinishReason::Length, stats);
        return false;
    }
    let index = job.generated;
    let filler = if request.ignore_eos { HELLO } else { EOS };
    let id = job.script.get(index as usize).copied().unwrap_or(filler);
    if id == FAIL {
        finish(job, FinishReason::Error("scripted failure".into()), stats);
        return false;
    }
    if id == DROP {
        return false;
    }
    let ends = (request.eos_tokens.contains(&id) && !request.ignore_eos) || request.stop_tokens.contains(&id);
    if ends && index >= request.min_tokens {
        finish(job, FinishReason::Stop { token: id }, stats);
        return false;
    }
    let logprobs = request.params.logprobs.map(|top| logprobs(id, top));
    job.generated += 1;
    stats.generated_tokens += 1;
    let sent = job.sink.send(Event::Token { index, id, logprobs });
    if sent.is_err() {
        stats.finished_cancelled += 1;
        return false;
    }
    if job.generated == request.max_tokens {
        finish(job, FinishReason::Length, stats);
        return false;
    }
    true
}

impl Backend for Scripted {
    fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), EngineError> {
        let mut queues = self.queues.lock().unwrap();
        if queues.ended {
            return Err(EngineError::Stopped("it was told to".into()));
        }
        if queues.waiting.len() >= self.behaviour.max_queue {
            let waiting = queues.waiting.len();
            return Err(EngineError::QueueFull { waiting });
        }
        queues.seen.push(request.clone());
        let script = (self.behaviour.script)(&request);
        queues.waiting.push_back(Job { request, sink, script, prefilled: 0, started: false, generated: 0 });
        drop(queues);
        self.news.notify_all();
        Ok(())
    }

    fn cancel(&self, id: RequestId) {
        self.queues.lock().unwrap().cancels.push(id);
        self.news.notify_all();
    }

    fn stats(&self) -> EngineStats {
        let queues = self.queues.lock().unwrap();
        let mut stats = queues.stats.clone();
        stats.running = queues.running.len() as u32;
        stats.waiting = queues.waiting.len() as u32;
        stats
    }

    fn max_context(&self) -> u32 {
        self.behaviour.max_context
    }

    fn is_serving(&self) -> bool {
        !self.queues.lock().unwrap().ended
    }
}

/// Bytes as tokens.
pub struct Bytes {
    pub bos: Option<u32>,
    pub defaults: GenerationDefaults,
    pub template: Option<ChatTemplate>,
}

const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'function' %}\
    {{ raise_exception('Conversation roles must alternate') }}{% endif %}\
    [{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

impl Bytes {
    pub fn new() -> Self {
        Self {
            bos: None,
            defaults: GenerationDefaults::default(),
            template: Some(ChatTemplate::new(TEMPLATE, "<s>", "</s>").unwrap()),
        }
    }

    pub fn without_template() -> Self {
        Self { template: None, ..Self::new() }
    }
}

impl Text for Bytes {
    fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TextError> {
        let bos = self.bos.filter(|_| options.add_special);
        Ok(bos.into_iter().chain(text.bytes().map(u32::from)).collect())
    }

    fn render(&self, messages: &serde_json::Value, options: &RenderOptions) -> Result<String, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        let rendered = template.render(messages, options);
        rendered.map_err(|e| TextError::Template(e.to_string()))
    }

    fn token_bytes(&self, id: u32) -> &[u8] {
        static ALL: [u8; 256] = {
            let mut all = [0; 256];
            let mut i = 0;
            while i < 256 {
                all[i] = i as u8;
                i += 1;
            }
            all
        };
        match id as usize {
            i @ 0..256 => &ALL[i..=i],
            256 => b"<s>",
            257 => b"</s>",
            i => WORDS.get(i - 258).copied().unwrap_or(b""),
        }
    }

    fn is_control(&self, id: u32) -> bool {
        matches!(id, BOS | EOS)
    }

    fn vocab_size(&self) -> usize {
        VOCABULARY as usize
    }

    fn bos(&self) -> Option<u32> {
        self.bos
    }

    fn eos(&self) -> &[u32] {
        &[EOS]
    }

    fn defaults(&self) -> &GenerationDefaults {
        &self.defaults
    }
}
