//! Which captured operators read what others make, and so which step of a plan each is in.

use rustc_hash::FxHashMap;
use tilefuse_fusion::{Call, Recording, Source, TensorId};

/// The captured calls of a model by their positions, and what goes from one to another.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperatorFlow {
    /// By call: those that read what it makes or writes, in order.
    readers: Vec<Vec<usize>>,
    /// By call: those that make or write what it reads, in order.
    makers: Vec<Vec<usize>>,
    /// By call: whether what is returned, or written to the caller's or the model's tensors, needs it.
    needed: Vec<bool>,
    /// By call: whether it makes views alone.
    views: Vec<bool>,
}

/// Which calls have made and written the tensors of a recording so far.
struct Sources<'a> {
    recording: &'a Recording,
    made: FxHashMap<u64, usize>,
    /// By storage.
    written: FxHashMap<u64, usize>,
}

impl Sources<'_> {
    /// The calls that a tensor has its values from.
    fn of(&self, tensor: u64) -> impl Iterator<Item = usize> + '_ {
        let storage = self.recording.tensors.get(tensor as usize).map(|info| info.storage);
        let writer = storage.and_then(|storage| self.written.get(&storage));
        self.made.get(&tensor).into_iter().chain(writer).copied()
    }
}

impl OperatorFlow {
    pub(crate) fn of(recording: &Recording) -> OperatorFlow {
        let count = recording.calls.len();
        let mut flow = OperatorFlow {
            readers: vec![Vec::new(); count],
            makers: Vec::with_capacity(count),
            needed: vec![false; count],
            views: recording.calls.iter().map(|call| makes_views(recording, call)).collect(),
        };
        let mut sources = Sources { recording, made: FxHashMap::default(), written: FxHashMap::default() };
        for (at, call) in recording.calls.iter().enumerate() {
            let operands = call.args.iter().flat_map(|(_, arg)| arg.tensors());
            let mut makers: Vec<usize> = operands.flat_map(|operand| sources.of(operand.0.into())).collect();
            makers.sort_unstable();
            makers.dedup();
            makers.iter().for_each(|&maker| flow.readers[maker].push(at));
            flow.makers.push(makers);
            let targets = call.writes.iter().filter_map(|&position| call.args.get(position));
            for info in targets.flat_map(|(_, arg)| arg.tensors()).map(|t| &recording.tensors[t.0 as usize]) {
                sources.written.insert(info.storage, at);
            }
            // A call that gives back what it was given is like a view of it.
            sources.made.extend(call.results.iter().flatten().map(|result| (result.0.into(), at)));
        }
        for output in &recording.outputs {
            sources.of(output.0.into()).for_each(|at| flow.needed[at] = true);
        }
        // What a call leaves in memory that is not its own.
        let outside = recording.tensors.iter().filter(|info| !matches!(info.source, Source::Call(_)));
        for writer in outside.filter_map(|info| sources.written.get(&info.storage)) {
            flow.needed[*writer] = true;
        }
        for at in (0..count).rev() {
            if flow.needed[at] {
                flow.makers[at].iter().for_each(|&maker| flow.needed[maker] = true);
            }
        }
        flow
    }

    /// Whether anything that a call of the model gives back needs a captured call.
    pub(crate) fn is_needed(&self, call: usize) -> bool {
        self.needed.get(call).copied().unwrap_or(true)
    }

    /// Whether a captured call makes views alone: it writes nothing, and what it gives lies in the memory of its operands.
    pub(crate) fn is_view(&self, call: usize) -> bool {
        self.views.get(call).copied().unwrap_or(false)
    }

    /// Completes what is known of the steps that calls are in. `spans` are steps that compute all from one call to another. What has no
    /// step of its own is in the one that reads it, as a view or as a part of what passes made one of it, else in the one that it reads.
    pub(crate) fn complete(&self, steps: &mut [Option<usize>], spans: &[([usize; 2], usize)]) {
        for &([first, last], step) in spans {
            self.between(first, last).into_iter().for_each(|at| _ = steps[at].get_or_insert(step));
        }
        let needed = || (0..steps.len()).filter(|&at| self.is_needed(at));
        let (onward, back): (Vec<usize>, Vec<usize>) = (needed().collect(), needed().rev().collect());
        for at in back {
            steps[at] = steps[at].or_else(|| self.readers[at].iter().find_map(|&reader| steps[reader]));
        }
        for at in onward {
            steps[at] = steps[at].or_else(|| self.makers[at].iter().rev().find_map(|&maker| steps[maker]));
        }
    }

    /// Those that lie on a way from one call to another, with both of them.
    fn between(&self, first: usize, last: usize) -> Vec<usize> {
        let last = last.min(self.makers.len().saturating_sub(1));
        let mut reached = vec![false; self.makers.len()];
        for at in first..=last {
            reached[at] = at == first || self.makers[at].iter().any(|&maker| reached[maker]);
        }
        let mut leads = vec![false; self.makers.len()];
        for at in (first..=last).rev() {
            leads[at] = reached[at] && (at == last || self.readers[at].iter().any(|&reader| leads[reader]));
        }
        (first..=last).filter(|&at| leads[at]).collect()
    }
}

/// Whether a call makes views alone.
fn makes_views(recording: &Recording, call: &Call) -> bool {
    let storage = |tensor: TensorId| recording.tensors.get(tensor.0 as usize).map(|info| info.storage);
    let operands: Vec<_> = call.args.iter().flat_map(|(_, arg)| arg.tensors()).filter_map(storage).collect();
    let mut results = call.results.iter().flatten().copied().peekable();
    let lies_in_operand =
        |result: TensorId| storage(result).is_some_and(|storage| operands.contains(&storage));
    call.writes.is_empty() && results.peek().is_some() && results.all(lies_in_operand)
}

#[cfg(test)]
mod tests {
    use tilefuse_fusion::parse_recording;

    use super::*;

    /// The steps of the calls of a recording, of which some are known.
    fn completed(
        recording: &str,
        known: &[Option<usize>],
        spans: &[([usize; 2], usize)],
    ) -> Vec<Option<usize>> {
        let mut steps = known.to_vec();
        OperatorFlow::of(&parse_recording(recording).unwrap()).complete(&mut steps, spans);
        steps
    }

    #[test]
    fn a_view_is_in_the_step_that_reads_it_and_what_nothing_needs_in_none() {
        let recording = r#"recording {
          %0 = input 0 : f32[4,2]
          %1: f32[4,2] = aten::exp(self=%0)
          %2: f32[8] in %1 = aten::view(self=%1, size=[8])
          %2 = aten::contiguous(self=%2)
          %3: f32[8] = aten::relu(self=%2)
          %4: f32[] = aten::sum(self=%1, dtype=None)
          %5: f32[2,4] in %3 = aten::view(self=%3, size=[2,4])
          outputs %5
        }"#;
        let known = [Some(0), None, None, Some(1), None, None];
        let found = completed(recording, &known, &[]);
        assert_eq!(found, [Some(0), Some(1), Some(1), Some(1), None, Some(1)]);
    }

    #[test]
    fn calls_whose_results_lie_in_their_operands_make_views_alone() {
        let recording = r#"recording {
          %0 = input 0 : f32[4,2]
          %1: f32[8] in %0 = aten::view(self=%0, size=[8])
          %2: f32[8] = aten::relu(self=%1)
          %3: f32[4] in %0+4 = aten::slice.Tensor(self=%1, dim=0, start=4, end=8, step=1)
          %3 = aten::relu_(self=%3!)
          outputs %2
        }"#;
        let flow = OperatorFlow::of(&parse_recording(recording).unwrap());
        assert_eq!([0, 1, 2, 3, 4].map(|call| flow.is_view(call)), [true, false, true, false, false]);
    }

    #[test]
    fn a_write_is_needed_by_what_reads_the_memory_and_by_the_caller() {
        let recording = r#"recording {
          %0 = input 0 : f32[4]
          %1: f32[2] in %0+2 = aten::slice.Tensor(self=%0, dim=0, start=2, end=9223372036854775807, step=1)
          %1 = aten::relu_(self=%1!)
          %2: f32[] = aten::sum(self=%0, dtype=None)
          outputs %2
        }"#;
        assert_eq!(completed(recording, &[None, None, Some(3)], &[]), [Some(3); 3]);
        assert_eq!(completed(recording, &[None, Some(2), Some(3)], &[]), [Some(2), Some(2), Some(3)]);
    }

    /// As an attention of several operators, whose mask is made of another input.
    #[test]
    fn all_on_the_way_from_one_call_to_another_is_in_the_step_of_both() {
        let recording = r#"recording {
          %0 = input 0 : f32[4,4]
          %1: f32[4,4] = aten::mm(self=%0, mat2=%0)
          %2: f32[4,4] = aten::neg(self=%0)
          %3: f32[4,4] = aten::add.Tensor(self=%1, other=%2, alpha=1)
          %4: f32[4,4] = aten::mm(self=%3, mat2=%0)
          %5: f32[4,4] = aten::relu(self=%4)
          outputs %5
        }"#;
        let known = [None, Some(0), None, None, Some(2)];
        let found = completed(recording, &known, &[([0, 3], 1)]);
        assert_eq!(found, [Some(1), Some(0), Some(1), Some(1), Some(2)]);
    }
}
