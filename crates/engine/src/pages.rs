//! The paged KV cache's book-keeping: which pages are free, in use, or kept for prompts that begin alike.
//!
//! Only full pages are shared, so nothing is ever copied. A full page is known by the chain of all tokens up to its
//! end; a page that nobody uses stays findable until its memory is needed, least recently used first.

use std::collections::HashMap;

/// Identity of a page's content: a digest of all tokens from the start of the text to the page's end.
pub type PageKey = [u8; 16];

/// The key before the first page.
pub const ROOT: PageKey = [0; 16];

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Page {
    references: u32,
    key: Option<PageKey>,
    /// Neighbours in the list of unused but findable pages.
    older: u32,
    newer: u32,
}

/// Pages of one KV cache. All methods take constant time, except for the hashing of one page's tokens.
#[derive(Debug)]
pub struct PagePool {
    block_tokens: usize,
    pages: Vec<Page>,
    free: Vec<u32>,
    by_key: HashMap<PageKey, u32>,
    oldest: u32,
    newest: u32,
    cached: usize,
    sharing: bool,
}

impl PagePool {
    /// `pages` free pages of `block_tokens` tokens; with `sharing` off, finished pages are not findable.
    pub fn new(pages: u32, block_tokens: u32, sharing: crate::PrefixCache) -> Self {
        let page = Page { references: 0, key: None, older: NONE, newer: NONE };
        Self {
            block_tokens: block_tokens.max(1) as usize,
            pages: vec![page; pages as usize],
            // Popped from the end: low pages first.
            free: (0..pages).rev().collect(),
            by_key: HashMap::with_capacity(pages as usize),
            oldest: NONE,
            newest: NONE,
            cached: 0,
            sharing: sharing == crate::PrefixCache::On,
        }
    }

    /// Tokens of a page.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Pages in all.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there are no pages at all.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Pages that [`Self::allocate`] can still give.
    pub fn available(&self) -> usize {
        self.free.len() + self.cached
    }

    /// Pages without a user whose content can be found.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Pages with users.
    pub fn used(&self) -> usize {
        self.pages.len() - self.available()
    }

    /// Takes a page for private use; its content is undefined. `None` when all have users.
    pub fn allocate(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(page) => page,
            None if self.oldest != NONE => {
                let page = self.oldest;
                self.unlink(page);
                if let Some(key) = self.pages[page as usize].key.take() {
                    self.by_key.remove(&key);
                }
                page
            }
            None => return None,
        };
        self.pages[page as usize].references = 1;
        Some(page)
    }

    /// Takes the longest known chain of full pages at the start of `tokens` and appends them to `pages`; returns the
    /// key of the last one, or [`ROOT`]. The caller becomes a user of each.
    pub fn acquire_prefix(&mut self, tokens: &[u32], pages: &mut Vec<u32>) -> PageKey {
        let mut key = ROOT;
        if !self.sharing {
            return key;
        }
        for block in tokens.chunks_exact(self.block_tokens) {
            let next = chain(&key, block);
            let Some(page) = self.by_key.get(&next).copied() else { break };
            if self.pages[page as usize].references == 0 {
                self.unlink(page);
            }
            self.pages[page as usize].references += 1;
            pages.push(page);
            key = next;
        }
        key
    }

    /// Makes a full, computed page findable; `before` is the key of the page before it in the text. Returns its own
    /// key. If the same content is findable already, this page stays private.
    pub fn publish(&mut self, page: u32, before: &PageKey, tokens: &[u32]) -> PageKey {
        if !self.sharing {
            return ROOT;
        }
        let key = chain(before, tokens);
        if self.pages[page as usize].key.is_none() && !self.by_key.contains_key(&key) {
            self.by_key.insert(key, page);
            self.pages[page as usize].key = Some(key);
        }
        key
    }

    /// Gives up one use of a page. Of a text, release the last page first: ends are dropped before beginnings.
    pub fn release(&mut self, page: u32) {
        let state = &mut self.pages[page as usize];
        debug_assert!(state.references > 0, "page {page} released without a user");
        state.references -= 1;
        if state.references == 0 {
            if state.key.is_some() {
                self.link(page);
            } else {
                self.free.push(page);
            }
        }
    }

    fn link(&mut self, page: u32) {
        self.pages[page as usize].older = self.newest;
        self.pages[page as usize].newer = NONE;
        match self.newest {
            NONE => self.oldest = page,
            newest => self.pages[newest as usize].newer = page,
        }
        self.newest = page;
        self.cached += 1;
    }

    fn unlink(&mut self, page: u32) {
        let Page { older, newer, .. } = self.pages[page as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.pages[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.pages[newer as usize].older = older,
        }
        self.cached -= 1;
    }

    /// Checks every invariant against `users`, the pages of all sequences with repetition. For tests.
    ///
    /// # Errors
    /// The first that does not hold, in words.
    pub fn check(&self, users: &[u32]) -> Result<(), String> {
        let mut counts = vec![0u32; self.pages.len()];
        for page in users {
            counts[*page as usize] += 1;
        }
        for (page, (state, count)) in self.pages.iter().zip(&counts).enumerate() {
            if state.references != *count {
                return Err(format!("page {page}: {} references, {count} users", state.references));
            }
        }
        let mut seen = vec![false; self.pages.len()];
        for page in &self.free {
            if std::mem::replace(&mut seen[*page as usize], true) || counts[*page as usize] > 0 {
                return Err(format!("page {page} is free twice or in use"));
            }
        }
        let (mut page, mut listed) = (self.oldest, 0);
        while page != NONE {
            if std::mem::replace(&mut seen[page as usize], true) || counts[page as usize] > 0 {
                return Err(format!("page {page} is kept and free, or in use"));
            }
            if self.pages[page as usize].key.is_none_or(|k| self.by_key.get(&k) != Some(&page)) {
                return Err(format!("page {page} is kept but cannot be found"));
            }
            listed += 1;
            page = self.pages[page as usize].newer;
        }
        if listed != self.cached {
            return Err(format!("{listed} pages listed, {} counted", self.cached));
        }
        match seen.iter().zip(&counts).position(|(seen, count)| !seen && *count == 0) {
            Some(page) => Err(format!("page {page} leaked")),
            None => Ok(()),
        }
    }
}

fn chain(before: &PageKey, tokens: &[u32]) -> PageKey {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before);
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    let mut key = ROOT;
    key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    key
}
