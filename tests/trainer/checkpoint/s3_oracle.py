"""Storage over S3 against a local server (moto): round trips, failures, cut uploads."""

import os
import unittest

import boto3
import moto.server
from failing_proxy import failing_proxy
from probe import Case, probe

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}
os.environ.update(CREDENTIALS)
os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
PART = 64 << 20  # bytes of a part of an upload
THREE_PARTS, TWO_PARTS = 2 * PART + 1_000_000, PART + 1_000_000


class S3(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        cls.server.start()
        cls.port = cls.server.get_host_and_port()[1]
        cls.client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{cls.port}")
        cls.client.create_bucket(Bucket="bucket")
        cls.count = 0

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def setUp(self):
        super().setUp()
        S3.count += 1
        self.prefix = f"prefix{S3.count}"
        self.address = self.at(self.port)

    def at(self, port):
        options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        return f"s3://bucket/{self.prefix}?{options}"

    def objects(self):
        return {
            o["Key"]: o["Size"]
            for o in self.client.list_objects_v2(Bucket="bucket", Prefix=self.prefix).get(
                "Contents", []
            )
            if not o["Key"].endswith("/")
        }

    def test_round_trip(self):
        for path, size in (
            ("tag/model/a.pt", 0),
            ("tag/model/b.pt", 100),
            ("tag/done", 1),
            ("tag/big", THREE_PARTS),
        ):
            probe("put", self.address, path, size)
            self.assertTrue(probe("check", self.address, path, size), path)
        self.assertEqual(
            self.objects(),
            {
                f"{self.prefix}/tag/{k}": v
                for k, v in {
                    "model/a.pt": 0,
                    "model/b.pt": 100,
                    "done": 1,
                    "big": THREE_PARTS,
                }.items()
            },
        )
        self.assertEqual(
            probe("list", self.address, "tag", "flat"),
            [
                ["tag/big", False, THREE_PARTS, True],
                ["tag/done", False, 1, True],
                ["tag/model", True, 0, False],
            ],
        )
        self.assertEqual(
            [e[0] for e in probe("list", self.address, "", "recursive")],
            ["tag", "tag/big", "tag/done", "tag/model", "tag/model/a.pt", "tag/model/b.pt"],
        )
        self.assertEqual(probe("list", self.address, "none", "flat"), [])
        self.assertTrue(probe("exists", self.address, "tag/model"))
        probe("remove-file", self.address, "tag/done")
        probe("remove-file", self.address, "tag/done")
        self.assertFalse(probe("exists", self.address, "tag/done"))
        probe("remove-directory", self.address, "tag")
        probe("remove-directory", self.address, "tag")
        self.assertFalse(probe("exists", self.address, "tag"))
        self.assertEqual(self.objects(), {})

    def test_failing_requests_are_tried_again(self):
        proxy, failed = failing_proxy(self.port, 0.15, 1)
        try:
            address = self.at(proxy.server_port)
            for i in range(12):
                probe("put", address, f"file{i}", 1000 + i)
                self.assertTrue(probe("check", address, f"file{i}", 1000 + i))
            probe("put", address, "big", TWO_PARTS)
            self.assertTrue(probe("check", address, "big", TWO_PARTS))
            self.assertGreater(len(failed), 5)
        finally:
            proxy.shutdown()

    def test_a_server_that_always_fails_is_an_error(self):
        proxy, failed = failing_proxy(self.port, 1.0, 1)
        try:
            with self.assertRaises(RuntimeError) as raised:
                probe("exists", self.at(proxy.server_port), "file")
            self.assertIn(f"s3://bucket/{self.prefix}/file", str(raised.exception))
            self.assertLessEqual(len(failed), 20, "ten tries of each of two requests")
        finally:
            proxy.shutdown()

    def test_an_upload_that_ends_early_leaves_no_object(self):
        for size in (100, TWO_PARTS):
            probe("put-half", self.address, "half", size)
            self.assertEqual(self.objects(), {})
            self.assertFalse(probe("exists", self.address, "half"))
        self.assertEqual(self.client.list_multipart_uploads(Bucket="bucket").get("Uploads", []), [])
        probe("put", self.address, "half", 5)
        probe("put-half", self.address, "half", 100)
        self.assertTrue(probe("check", self.address, "half", 5), "the older object stays")

    def test_errors_name_the_address_and_no_secret(self):
        address = self.address.replace("s3://", "s3://name:hidden@")
        for verb in (("check", address, "missing", 1), ("put", address, "file", 5)):
            with self.assertRaises(RuntimeError) as raised:
                probe(*verb)
            self.assertIn(f"s3://bucket/{self.prefix}", str(raised.exception))
            self.assertIn("AWS_SECRET_ACCESS_KEY", str(raised.exception))
            self.assertNotIn("hidden", str(raised.exception))
        self.assertEqual(self.objects(), {})
        with self.assertRaises(RuntimeError) as raised:
            probe("check", self.address, "missing", 1)
        self.assertIn(f"s3://bucket/{self.prefix}/missing", str(raised.exception))
        self.refused("exists", "s3://", "x", texts=["s3://"])
        self.refused("exists", self.address, "../x", texts=["'..'"])

    def test_formats_over_s3(self):
        folder = self.address.split("?")[0]
        self.assertTrue(folder)
        import torch
        import torch.distributed.checkpoint as dcp

        dcp.save({"w": torch.arange(6.0)}, checkpoint_id=self.dir / "theirs", no_dist=True)
        probe("dcp-copy", self.dir / "theirs", self.address)
        self.assertEqual(len(self.objects()), 3)
        self.assertEqual(
            probe("dcp-describe", self.address), probe("dcp-describe", self.dir / "theirs")
        )

    def test_local_addresses_do_not_load_arrow(self):
        self.assertFalse(probe("loads-arrow", self.dir))
        self.assertTrue(probe("loads-arrow", self.address))


if __name__ == "__main__":
    unittest.main()
