//! Dirty page tracking: whether memory was written since it was last asked about, by whomever and however.
//!
//! Versions of tensors count the writes of operators on parameters alone. Stores through [`Tensor::data`](tch::Tensor::data) or
//! a raw pointer, reads of files into a weight and writes of foreign code go past them. The pages of a watched range are
//! write-protected with `userfaultfd` in its asynchronous mode (Linux 6.7): the first store to a page makes it writable
//! again without a signal or a stop, and the `PAGEMAP_SCAN` ioctl reports and protects such pages; ranges whose pages are
//! neighbours take one call. The pages at both ends may have other data, too: where one was written, the range's part of
//! it is compared with a copy, and where that data is written again and again, the comparison alone is made instead.
//!
//! What maps the same pages a second time can write them unseen; so only private anonymous mappings are watched. Devices
//! that write memory by themselves are not seen either.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;
use linux_raw_sys::general::{
    PAGE_IS_WRITTEN, PM_SCAN_CHECK_WPASYNC, PM_SCAN_WP_MATCHING, UFFD_API, UFFD_FEATURE_WP_ASYNC,
    UFFD_FEATURE_WP_UNPOPULATED, UFFD_USER_MODE_ONLY, UFFDIO_REGISTER_MODE_WP, page_region, pm_scan_arg,
    uffdio_api, uffdio_range, uffdio_register,
};
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER};
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u32 = 3 << 30 | (size_of::<pm_scan_arg>() as u32) << 16 | (b'f' as u32) << 8 | 16;

/// Bytes of which a comparison takes no longer than a system call, so that small ranges alone are compared,
const MAX_COMPARED_BYTES: usize = 8 << 10;
/// where there are no more of them than stay in a cache from call to call.
const MAX_CACHED_BYTES: usize = 64 << 10;

/// So many times an end's page is found to be written but for what is watched, each soon after the last, before it is
/// compared without being asked about.
const MAX_FALSE_ALARMS: u32 = 8;

/// How many questions make one soon after another.
const MAX_QUESTIONS_BETWEEN: u64 = 16;

/// After so many comparisons without being asked about, an end's page is asked about again: an eager call's memory is no
/// neighbour for ever.
const MAX_COMPARISONS: u64 = 512;

/// A range of memory that is watched while this lives.
#[derive(Debug)]
pub(crate) struct Watch {
    id: u64,
    range: Range<usize>,
}

/// The mappings of the process whose pages nothing else maps and no file is behind, in order.
#[derive(Debug)]
pub(crate) struct Mappings(Vec<Range<usize>>);

#[derive(Debug)]
struct Tracker {
    userfaultfd: OwnedFd,
    pagemap: File,
    /// The process whose pages the two are about: a child process has a copy of the memory and the same descriptors.
    process: u32,
    page: usize,
    watched: IndexMap<u64, Watched, FxBuildHasher>,
    next: u64,
}

#[derive(Debug)]
struct Watched {
    /// The pages that have any of it.
    pages: Range<usize>,
    /// Those that have nothing else, of a range that is not small.
    own: Range<usize>,
    /// What lies in the others: addresses and the bytes that were there.
    ends: [(usize, Vec<u8>); 2],
    /// Whether the ends are compared each time, and their pages not asked about.
    compares: bool,
    /// How often their pages were written while they were not, and at which question the last time.
    false_alarms: (u32, u64),
    /// How often it was asked about, and found to be written.
    questions: u64,
    writes: u64,
}

impl Watched {
    /// The pages that are asked about.
    fn scanned(&self) -> &Range<usize> {
        if self.compares { &self.own } else { &self.pages }
    }

    /// Bytes that are compared.
    fn compared_bytes(&self) -> usize {
        self.ends.iter().map(|(_, old)| old.len()).sum()
    }

    /// Compares the ends with what they were.
    fn compare_ends(&mut self) -> bool {
        let mut written = false;
        for (start, old) in self.ends.iter_mut().filter(|(_, old)| !old.is_empty()) {
            let now = bytes(&(*start..*start + old.len()));
            if now != old {
                old.copy_from_slice(now);
                written = true;
            }
        }
        written
    }

    /// Asks about the ends' pages once more, where that was long ago.
    fn watch_again(&mut self) {
        let (_, last) = self.false_alarms;
        if self.compares && self.questions - last > MAX_COMPARISONS {
            self.compares = false;
            self.false_alarms = (MAX_FALSE_ALARMS - 2, self.questions);
        }
    }

    /// Some of its pages were written.
    fn note(&mut self, pages: &Range<usize>) {
        let own = meet(&self.own, pages);
        let ends = !self.compares && self.compare_ends();
        if own || ends {
            self.writes += 1;
            return;
        }
        let (count, last) = self.false_alarms;
        let count = if self.questions - last < MAX_QUESTIONS_BETWEEN { count + 1 } else { 1 };
        self.false_alarms = (count, self.questions);
        self.compares = count >= MAX_FALSE_ALARMS;
    }
}

/// The tracker of the process; none where the system offers no such thing or forbids it.
static TRACKER: LazyLock<Option<Mutex<Tracker>>> = LazyLock::new(|| {
    let tracker = Tracker::new();
    if let Err(error) = &tracker {
        tracing::debug!("writes to memory cannot be tracked: {error}");
    }
    tracker.ok().map(Mutex::new)
});

fn tracker() -> Option<MutexGuard<'static, Tracker>> {
    TRACKER.as_ref().map(|tracker| tracker.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether writes can be tracked in this process.
pub(crate) fn is_available() -> bool {
    TRACKER.is_some()
}

impl Mappings {
    /// Those of this moment.
    pub(crate) fn now() -> Mappings {
        Mappings::parse(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default())
    }

    /// From lines of `start-end permissions offset device inode name`; neighbours become one.
    fn parse(text: &str) -> Mappings {
        let mut all: Vec<Range<usize>> = Vec::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
            let [range, permissions, _, _, "0"] = fields[..] else { continue };
            let Some((start, end)) = range.split_once('-').filter(|_| permissions.ends_with('p')) else {
                continue;
            };
            let address = |text| usize::from_str_radix(text, 16);
            let (Ok(start), Ok(end)) = (address(start), address(end)) else { continue };
            match all.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = end,
                None => all.push(start..end),
            }
        }
        Mappings(all)
    }

    /// Whether all of a range is in them.
    pub(crate) fn hold(&self, range: &Range<usize>) -> bool {
        let at = self.0.partition_point(|mapping| mapping.end < range.end);
        self.0.get(at).is_some_and(|mapping| mapping.start <= range.start)
    }
}

impl Watch {
    /// Watches a range from now on; `None` where writes to it could go unseen.
    pub(crate) fn new(range: Range<usize>, mappings: &Mappings) -> Option<Watch> {
        if !mappings.hold(&range) {
            return None;
        }
        let id = tracker()?.watch(&range)?;
        Some(Watch { id, range })
    }

    /// What it watches.
    pub(crate) fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// A number that is another one than before where the range was written since.
    pub(crate) fn writes(&self) -> u64 {
        writes(&[Some(self)])[0].unwrap_or(0)
    }
}

/// [`Watch::writes`] of each; none where there is no watch.
pub(crate) fn writes(watches: &[Option<&Watch>]) -> SmallVec<[Option<u64>; 16]> {
    let mut tracker = watches.iter().any(Option::is_some).then(tracker).flatten();
    if let Some(tracker) = &mut tracker {
        let ids: SmallVec<[u64; 64]> = watches.iter().flatten().map(|watch| watch.id).collect();
        tracker.look(&ids);
    }
    let count = |watch: &Watch| tracker.as_ref().map_or(0, |tracker| tracker.writes(watch.id));
    watches.iter().map(|watch| watch.map(count)).collect()
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(mut tracker) = tracker() {
            tracker.forget(self.id);
        }
    }
}

impl Tracker {
    /// One that has been seen to work.
    fn new() -> std::io::Result<Tracker> {
        // SAFETY: the call takes an integer.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY as i32;
        // SAFETY: the call takes flags and returns a descriptor or -1.
        let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let descriptor = RawFd::try_from(descriptor).ok().filter(|&descriptor| descriptor >= 0);
        let descriptor = descriptor.ok_or_else(std::io::Error::last_os_error)?;
        // SAFETY: the descriptor is open and nobody else's.
        let userfaultfd = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let features = u64::from(UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED);
        let mut api = uffdio_api { api: UFFD_API.into(), features, ioctls: 0 };
        control(&userfaultfd, UFFDIO_API, &mut api)?;
        let pagemap = File::open("/proc/self/pagemap")?;
        let process = std::process::id();
        let mut tracker =
            Tracker { userfaultfd, pagemap, process, page, watched: IndexMap::default(), next: 0 };
        match tracker.sees_writes() {
            true => Ok(tracker),
            false => Err(std::io::Error::other("a write to a watched page was not reported as one")),
        }
    }

    /// Tries it on a few pages.
    fn sees_writes(&mut self) -> bool {
        let mut memory = vec![1_u8; MAX_COMPARED_BYTES + 4 * self.page];
        let start = memory.as_mut_ptr();
        let Some(id) = self.watch(&(start.expose_provenance()..start.addr() + memory.len())) else {
            return false;
        };
        let mut count = || {
            self.look(&[id]);
            self.writes(id)
        };
        let before = count();
        let quiet = count();
        // SAFETY: the byte is inside of the memory, and there is no other reference to it.
        unsafe { start.add(memory.len() / 2).write_volatile(2) };
        let after = count();
        self.forget(id);
        before == quiet && after > before
    }

    fn watch(&mut self, range: &Range<usize>) -> Option<u64> {
        let down = |address: usize| address - address % self.page;
        let is_small = range.len() <= MAX_COMPARED_BYTES;
        let first = if is_small { range.end } else { range.start.next_multiple_of(self.page).min(range.end) };
        let own = first..down(range.end).max(first);
        let pages = down(range.start)..range.end.next_multiple_of(self.page);
        if range.is_empty() {
            return None;
        }
        let registered = uffdio_range { start: pages.start as u64, len: pages.len() as u64 };
        let mode = UFFDIO_REGISTER_MODE_WP.into();
        let mut register = uffdio_register { range: registered, mode, ioctls: 0 };
        control(&self.userfaultfd, UFFDIO_REGISTER, &mut register).ok()?;
        let ends = [range.start..own.start, own.end..range.end];
        let ends = ends.map(|range| (range.start, bytes(&range).to_vec()));
        let id = self.next;
        self.next += 1;
        let (compares, false_alarms) = (false, (0, 0));
        let watched = Watched { pages, own, ends, compares, false_alarms, questions: 0, writes: 0 };
        self.watched.insert(id, watched);
        Some(id)
    }

    fn forget(&mut self, id: u64) {
        let Some(gone) = self.watched.swap_remove(&id) else { return };
        // What others watch stays registered, and with it what lies beside; that costs a fault of a page at most.
        if self.process == std::process::id()
            && !self.watched.values().any(|other| meet(&other.pages, &gone.pages))
        {
            let mut range = uffdio_range { start: gone.pages.start as u64, len: gone.pages.len() as u64 };
            let _ = control(&self.userfaultfd, UFFDIO_UNREGISTER, &mut range);
        }
    }

    fn writes(&self, id: u64) -> u64 {
        self.watched.get(&id).map_or(0, |watched| watched.writes)
    }

    /// Finds out what was written of these.
    fn look(&mut self, ids: &[u64]) {
        let mut watched = SmallVec::<[(Range<usize>, usize); 64]>::new();
        let mut small_bytes = 0;
        for (at, id) in ids.iter().enumerate() {
            let Some(of) = self.watched.get_mut(id) else { continue };
            of.questions += 1;
            of.watch_again();
            if of.compares && of.compare_ends() {
                of.writes += 1;
            }
            if !of.scanned().is_empty() {
                watched.push((of.scanned().clone(), at));
                small_bytes += if of.own.is_empty() { of.compared_bytes() } else { 0 };
            }
        }
        watched.sort_unstable_by_key(|(pages, _)| pages.start);
        let mut rest = watched.as_slice();
        while let Some((first, _)) = rest.first() {
            let mut span = first.clone();
            let ends = |(pages, _): &(Range<usize>, usize)| {
                let apart = pages.start > span.end;
                span.end = if apart { span.end } else { span.end.max(pages.end) };
                apart
            };
            let (together, others) = rest.split_at(rest.iter().position(ends).unwrap_or(rest.len()));
            rest = others;
            let together = together.iter().filter_map(|&(_, at)| ids.get(at));
            let compared = small_bytes <= MAX_CACHED_BYTES && self.compare_small(together);
            if !compared && self.scan(span.clone()).is_err() {
                self.note(&span);
            }
        }
    }

    /// Compares ranges of which all that is watched is compared sooner than a system call returns; `false` for others.
    fn compare_small<'i>(&mut self, ids: impl Iterator<Item = &'i u64> + Clone) -> bool {
        let bytes = |of: &Watched| if of.own.is_empty() { of.compared_bytes() } else { usize::MAX };
        let all = ids.clone().filter_map(|id| self.watched.get(id)).map(bytes);
        if all.fold(0, usize::saturating_add) > MAX_COMPARED_BYTES {
            return false;
        }
        for id in ids {
            if let Some(of) = self.watched.get_mut(id)
                && of.compare_ends()
            {
                of.writes += 1;
            }
        }
        true
    }

    /// Notes which pages of a range were written, and protects them again. Fails where a page is not protected by this
    /// tracker, whoever changed that: it may have been written then.
    fn scan(&mut self, pages: Range<usize>) -> std::io::Result<()> {
        if self.process != std::process::id() {
            return Err(std::io::Error::other("the tracker is another process's"));
        }
        let mut start = pages.start as u64;
        while start < pages.end as u64 {
            let mut found = [page_region { start: 0, end: 0, categories: 0 }; 16];
            let mut scan = pm_scan_arg {
                size: size_of::<pm_scan_arg>() as u64,
                flags: (PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC).into(),
                start,
                end: pages.end as u64,
                walk_end: 0,
                vec: found.as_mut_ptr().addr() as u64,
                vec_len: found.len() as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: PAGE_IS_WRITTEN.into(),
                category_anyof_mask: 0,
                return_mask: PAGE_IS_WRITTEN.into(),
            };
            let count = control(&self.pagemap, PAGEMAP_SCAN, &mut scan)?;
            for region in found.iter().take(count) {
                self.note(&(region.start as usize..region.end as usize));
            }
            if scan.walk_end <= start {
                return Err(std::io::Error::other("a scan of pages came to no end"));
            }
            start = scan.walk_end;
        }
        Ok(())
    }

    /// Tells all who watch some of the pages that they were written.
    fn note(&mut self, range: &Range<usize>) {
        for watched in self.watched.values_mut().filter(|watched| meet(watched.scanned(), range)) {
            watched.note(range);
        }
    }
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

/// The bytes of watched memory. Its owner is alive, and who writes it meanwhile races with the model as well.
fn bytes<'a>(range: &Range<usize>) -> &'a [u8] {
    if range.is_empty() {
        return &[];
    }
    // SAFETY: those who watch memory keep the tensor that has it, and found all of it to be mapped.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(range.start), range.len()) }
}

/// An ioctl whose argument is a structure that the kernel reads and fills.
fn control<T>(descriptor: &impl AsRawFd, request: u32, argument: &mut T) -> std::io::Result<usize> {
    loop {
        // SAFETY: each of the requests above takes a pointer to the structure that it is called with here.
        let result =
            unsafe { libc::ioctl(descriptor.as_raw_fd(), request.into(), std::ptr::from_mut(argument)) };
        match usize::try_from(result) {
            Ok(result) => return Ok(result),
            Err(_) => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(memory: &[u8]) -> Range<usize> {
        memory.as_ptr().expose_provenance()..memory.as_ptr().addr() + memory.len()
    }

    fn store(memory: &[u8], at: usize) {
        // SAFETY: the byte is inside of the memory of a vector, which no reference is read through meanwhile.
        unsafe {
            let byte = memory.as_ptr().cast_mut().add(at);
            byte.write_volatile(byte.read_volatile().wrapping_add(1));
        }
    }

    #[test]
    fn every_byte_that_is_written_is_seen() {
        if !is_available() {
            eprintln!("skipped, no dirty page tracking");
            return;
        }
        for len in [1, 100, 4096, 20_000, 40_000, 3 << 20] {
            let memory = vec![1_u8; len];
            let watch = Watch::new(range(&memory), &Mappings::now()).unwrap();
            let mut last = watch.writes();
            assert_eq!(watch.writes(), last);
            for at in (0..len).step_by(len.div_ceil(97)).chain([0, len / 2, len - 1]) {
                store(&memory, at);
                let now = watch.writes();
                assert!(now > last, "byte {at} of {len}");
                assert_eq!(watch.writes(), now);
                last = now;
            }
        }
    }

    /// What one of two finds, and protects again, is a write for the other one too.
    #[test]
    fn many_are_asked_at_once() {
        if !is_available() {
            eprintln!("skipped, no dirty page tracking");
            return;
        }
        let memory = [vec![1_u8; 100], vec![1_u8; 3 << 20]];
        let mappings = Mappings::now();
        let watches = memory.each_ref().map(|memory| Watch::new(range(memory), &mappings).unwrap());
        let all = [Some(&watches[0]), None, Some(&watches[1])];
        let before = writes(&all);
        assert!(before[1].is_none() && writes(&all) == before);
        store(&memory[1], 1 << 20);
        let after = writes(&all);
        assert!(after[0] == before[0] && after[2] > before[2]);
        assert_eq!(watches[1].writes(), after[2].unwrap());
        assert!(writes(&[]).is_empty());
    }

    /// The pages at the ends have other data: its writes are none of what is watched, and where there are many, the ends
    /// are still seen to be written.
    #[test]
    fn writes_beside_are_told_from_writes() {
        if !is_available() {
            eprintln!("skipped, no dirty page tracking");
            return;
        }
        for (from, to) in [(4000, 4100), (4000, 50_000), (100, 200), (8192, 50_000)] {
            let memory = vec![1_u8; 64 << 10];
            // From the beginning of a page.
            let start = memory.as_ptr().align_offset(4096);
            let inner = &memory[start + from..start + to];
            let watch = Watch::new(range(inner), &Mappings::now()).unwrap();
            let mut last = watch.writes();
            for round in 0..5 * MAX_FALSE_ALARMS {
                if round == 3 * MAX_FALSE_ALARMS {
                    // Nothing is written beside it for long.
                    (0..2 * MAX_COMPARISONS).for_each(|_| assert_eq!(watch.writes(), last));
                }
                for beside in [start + from - 1, start + to] {
                    store(&memory, beside);
                    assert_eq!(watch.writes(), last, "round {round} of {from}..{to}");
                }
                for at in [0, inner.len() / 2, inner.len() - 1] {
                    store(inner, at);
                    let now = watch.writes();
                    assert!(now > last, "round {round} of {from}..{to}, byte {at}");
                    assert_eq!(watch.writes(), now);
                    last = now;
                }
            }
        }
    }

    #[test]
    fn those_who_watch_the_same_pages_see_the_same_writes() {
        if !is_available() {
            eprintln!("skipped, no dirty page tracking");
            return;
        }
        let memory = vec![1_u8; 1 << 20];
        let mappings = Mappings::now();
        let all = Watch::new(range(&memory), &mappings).unwrap();
        let half = Watch::new(range(&memory[1 << 19..]), &mappings).unwrap();
        let before = [all.writes(), half.writes()];
        store(&memory, 700_000);
        assert!(all.writes() > before[0] && half.writes() > before[1]);
        let before = [all.writes(), half.writes()];
        store(&memory, 100_000);
        assert_eq!(half.writes(), before[1]);
        assert!(all.writes() > before[0]);
        drop(all);
        let before = half.writes();
        store(&memory, 900_000);
        assert!(half.writes() > before);
    }

    #[test]
    fn what_others_may_map_is_not_watched() {
        let text = "\
10000-20000 r--p 00000000 fe:00 1234 /usr/bin/program
20000-30000 rw-p 00000000 00:00 0 [heap]
30000-38000 rw-p 00000000 00:00 0
38000-40000 rw-s 00000000 00:01 55 /dev/zero (deleted)
50000-60000 r--p 00000000 00:00 0
";
        let mappings = Mappings::parse(text);
        assert!(mappings.hold(&(0x2_0000..0x3_8000)) && mappings.hold(&(0x5_0010..0x5_0020)));
        for range in [0x1_ff00..0x2_0010, 0x3_0000..0x3_8001, 0x4_8000..0x5_0010, 0x6_0000..0x6_0001] {
            assert!(!mappings.hold(&range), "{range:x?}");
        }
    }
}
