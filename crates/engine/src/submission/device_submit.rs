//! Hands requests to the queue pairs of devices.

use crate::completion::complete;
use crate::op::block_device;
use crate::request::RequestEntry;
use crate::request::operation::Operation;
use crate::request::outcome::ChannelIndex;
use crate::ring::LockedRing;
use crate::submission::suspend;
use crate::waiting::device_queues::Unpolled;
use usring_device::Submission;
use usring_sys::Errno;
use usring_sys::ticks::Ticks;

/// Hands a transfer to the ring's channel `index` (its queue pair on a device). If the channel has
/// no free slot, the request waits for one.
#[inline(always)]
pub(crate) fn submit(locked: &mut LockedRing, mut request: RequestEntry, index: ChannelIndex) {
    if request.link.is_some() {
        locked.waiting.timeouts.arm_link_timeout(&mut request);
    }
    let queues = &mut locked.devices.queues;
    let queue = &mut queues.channels[index.0 as usize];
    if queue.must_await_slot {
        return not_accepted(locked, request, index, Submission::Full);
    }
    let Some(token) = queue.free.pop() else { return not_accepted(locked, request, index, Submission::Full) };
    let submission = match &request.operation {
        Operation::ReadWrite(transfer) => {
            let (registered, number) = (request.fixed_buffer.is_any(), request.file.number);
            queue.channel.submit(&transfer.as_device_request(token, registered, number, queue.added_flags))
        }
        _ => Submission::Refused(Errno::EINVAL),
    };
    if submission == Submission::Accepted {
        if let Some(hybrid) = &mut queues.hybrid {
            hybrid.unpolled.push_back(Unpolled { channel: index.0, token, id: request.id, since: Ticks::now() });
        }
        queue.out[token as usize] = Some(request);
        queues.in_flight += 1;
        if !queue.defers_submits {
            queues.needs_doorbell = true;
            return;
        }
        // A submit helper may have been asked to submit earlier requests of this queue. This thread
        // now submits them together with the new request.
        queues.left_to_helper = false;
        queues.pending += 1;
        queue.pending += 1;
        return;
    }
    queue.free.push(token);
    not_accepted(locked, request, index, submission);
}

#[cold]
fn not_accepted(locked: &mut LockedRing, mut request: RequestEntry, index: ChannelIndex, submission: Submission) {
    match submission {
        Submission::Refused(error) => complete::complete(locked, request, error.negative().into()),
        Submission::NeedsWorker => suspend::hand_to_worker(locked, request),
        Submission::Full | Submission::Accepted => {
            // The request waits for a free slot, and may later need a worker. By then the program
            // may have closed the request's file. So the request notes the file's device now, or
            // keeps the file open.
            block_device::note(locked, &mut request);
            if request.file.device.is_none()
                && let Err(error) = locked.devices.named.keep(&mut request.file)
            {
                return complete::complete(locked, request, error.negative().into());
            }
            locked.devices.queues.in_flight += 1;
            let queue = &mut locked.devices.queues.channels[index.0 as usize];
            queue.awaiting_slot.push_back(request);
            queue.must_await_slot = true;
        }
    }
}
