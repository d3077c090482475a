"""What libraries keep once for a process, and ranks as threads need each for itself: DTensor's
losses, launchers' variables, threads that ranks start."""

import concurrent.futures
import os
import tempfile
import threading
import unittest
import unittest.mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from trellis_neuron import run_ranks

RANKS = 2


def mesh_of_ranks():
    dist.init_process_group("neuron")
    return init_device_mesh("neuron", (RANKS,))


class Losses(unittest.TestCase):
    def test_loss_parallel(self):
        logits = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))

        def body(rank):
            mesh = mesh_of_ranks()
            losses, gradient = [], None
            for _ in range(5):  # ranks are in and out of it at different times
                x = distribute_tensor(logits.to("neuron").requires_grad_(), mesh, [Shard(1)])
                x.retain_grad()
                with loss_parallel():
                    loss = F.cross_entropy(x, torch.arange(4, device="neuron"))
                    loss.backward()
                losses.append(loss.item())
                gradient = x.grad.full_tensor().cpu()
            return losses, gradient

        x = logits.clone().requires_grad_()
        expected = F.cross_entropy(x, torch.arange(4))
        expected.backward()
        for losses, gradient in run_ranks(body, RANKS):
            for loss in losses:
                self.assertAlmostEqual(loss, expected.item(), places=5)
            self.assertTrue(torch.allclose(gradient, x.grad, atol=1e-6))


class OnePerRank(unittest.TestCase):
    def test_variables_of_a_launcher(self):
        before = dict(os.environ)

        def body(rank):
            seen = [os.environ["RANK"], os.getenv("LOCAL_RANK"), os.environ.get("WORLD_SIZE")]
            self.assertEqual({**os.environ}["RANK"], str(rank))
            with unittest.mock.patch.dict(os.environ, {"LOCAL_RANK": "7"}):  # a rank's own
                seen.append(os.environ["LOCAL_RANK"])
            return seen

        self.assertEqual(run_ranks(body, 2), [[str(r), str(r), "2", "7"] for r in (0, 1)])
        self.assertEqual(dict(os.environ), before)
        self.assertNotIn("RANK", os.environ)

    def test_threads_that_a_rank_starts(self):
        pool = concurrent.futures.ThreadPoolExecutor(1)  # of the process: it serves all ranks

        def where():
            group = dist.distributed_c10d._get_default_group()
            named = torch._C._distributed_c10d._resolve_process_group(group.group_name)
            return named.rank(), os.environ["RANK"], torch.neuron.current_device()

        def body(rank):
            dist.init_process_group("neuron")
            seen = []
            thread = threading.Thread(target=lambda: seen.append(where()))
            thread.start()
            thread.join()
            return seen + [pool.submit(where).result() for _ in range(3)]

        self.assertEqual(run_ranks(body, 2), [[(r, str(r), r)] * 4 for r in (0, 1)])
        self.assertIs(pool.submit(dist.is_initialized).result(), False)
        pool.shutdown()

    def test_accelerate_has_a_state_per_rank(self):
        from accelerate import Accelerator

        def body(rank):
            accelerator = Accelerator()
            model = accelerator.prepare(torch.nn.Linear(2, 2, bias=False))
            model(torch.full((1, 2), rank + 1.0, device=accelerator.device)).sum().backward()
            gradient = next(model.parameters()).grad[0, 0].item()
            return accelerator.process_index, accelerator.num_processes, gradient

        self.assertEqual(run_ranks(body, 2), [(0, 2, 1.5), (1, 2, 1.5)])

    def test_tensor_parallel_plan_of_transformers(self):
        import transformers

        config = transformers.LlamaConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=48, vocab_size=64,
        )  # fmt: skip
        torch.manual_seed(0)
        model, ids = transformers.LlamaForCausalLM(config), torch.arange(12)[None]
        expected = model(input_ids=ids, labels=ids).loss.item()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)

            def body(rank):
                dist.init_process_group("neuron")
                parts = transformers.AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
                loss = parts(input_ids=ids.to("neuron"), labels=ids.to("neuron")).loss
                loss.backward()
                return loss.item()

            for loss in run_ranks(body, RANKS):
                self.assertAlmostEqual(loss, expected, places=5)


if __name__ == "__main__":
    unittest.main()
