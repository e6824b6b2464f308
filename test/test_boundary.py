"""The boundary pool: classes of bytes, addresses, where tensors lie, blocks of a class, misuse."""

from __future__ import annotations

import torch
from common import HologramTestCase, run_python, several_devices
from torch.testing._internal.common_utils import run_tests

from torch_hologram import boundary


class TestAddresses(HologramTestCase):
    def test_module(self):
        self.assertIs(torch.hologram.boundary, boundary)
        self.assertEqual(boundary.REGION_BYTES, 96 * 48 * 256)

    def test_class_of_a_byte(self):
        members: dict[int, list[int]] = {}
        for byte in range(256):
            high, low = byte >> 6, byte >> 1 & 7
            middle = {0b00: 0, 0b01: 1, 0b10: 2, 0b11: 0}[byte >> 4 & 3]
            self.assertEqual(boundary.byte_to_class(byte), 24 * high + 8 * middle + low)
            members.setdefault(boundary.byte_to_class(byte), []).append(byte)
        self.assertEqual(sorted(members), list(range(96)))
        for index, bytes_ in members.items():
            canonical = boundary.class_to_byte(index)
            self.assertEqual(canonical, min(bytes_))
            self.assertEqual(canonical & 1, 0)
            self.assertNotEqual(canonical >> 4 & 3, 3)

    def test_values_worked_out_by_hand(self):
        self.assertEqual(boundary.byte_to_class(0b10_01_011_1), 2 * 24 + 8 + 3)
        self.assertEqual(boundary.byte_to_class(0b11_11_111_1), 3 * 24 + 7)
        self.assertEqual(boundary.class_to_byte(95), 0b11_10_111_0)
        self.assertEqual(boundary.boundary_offset(2, 3, 5), 2 * 12288 + 3 * 256 + 5)
        self.assertEqual(boundary.boundary_offset(95, 47, 255), boundary.REGION_BYTES - 1)

    def test_offsets_and_addresses_are_inverse(self):
        for offset in range(0, boundary.REGION_BYTES, 1009):
            address = boundary.boundary_address(offset)
            self.assertEqual(boundary.boundary_offset(*address), offset)
        self.assertEqual(
            boundary.boundary_address(12288 + 256 + 7), boundary.BoundaryAddress(1, 1, 7)
        )

    def test_out_of_range(self):
        for call, text in (
            (lambda: boundary.byte_to_class(256), "byte 256 .* from 0 to 255"),
            (lambda: boundary.byte_to_class(-1), "byte -1 "),
            (lambda: boundary.class_to_byte(96), "class 96 .* from 0 to 95"),
            (lambda: boundary.class_to_byte(-1), "class -1 "),
            (lambda: boundary.boundary_offset(96, 0), "class 96 .* from 0 to 95"),
            (lambda: boundary.boundary_offset(0, 48), "page 48 .* from 0 to 47"),
            (lambda: boundary.boundary_offset(0, -1), "page -1 "),
            (lambda: boundary.boundary_offset(0, 0, 256), "byte 256 .* from 0 to 255"),
            (lambda: boundary.boundary_address(1179648), "offset 1179648 .* to 1179647"),
            (lambda: boundary.boundary_address(-1), "offset -1 "),
            (lambda: boundary.allocate(96, 1), "class 96 .* from 0 to 95"),
            (lambda: boundary.allocate(0, 0), "from 1 to 12288 bytes, not 0"),
            (lambda: boundary.allocate(0, 12289), "from 1 to 12288 bytes, not 12289"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                call()


class TestPlaces(HologramTestCase):
    def test_small_tensors_lie_in_the_region(self):
        tensor = torch.zeros(100, device="hologram")
        place = boundary.locate(tensor)
        start = boundary.region()
        self.assertEqual(start + boundary.boundary_offset(*place), tensor.data_ptr())
        self.assertEqual(place.byte, 0)
        later = boundary.locate(tensor[65:])
        self.assertEqual(later, (place.class_index, place.page + 1, 4))

    def test_what_lies_elsewhere(self):
        torch.zeros(1, device="hologram")
        self.assertIsNone(boundary.locate(torch.empty(12289, dtype=torch.uint8, device="hologram")))
        self.assertIsNone(boundary.locate(torch.empty(0, device="hologram")))
        with self.assertRaisesRegex(ValueError, "Expected a hologram device, but got: cpu"):
            boundary.locate(torch.zeros(1))

    def test_usage_follows_tensors(self):
        tensor = torch.empty(3000, dtype=torch.uint8, device="hologram")
        index = boundary.locate(tensor).class_index
        before = boundary.usage()[index]
        self.assertLessEqual(before.longest_free_run, before.free_pages)
        del tensor
        self.assertEqual(boundary.usage()[index].free_pages, before.free_pages + 12)

    def test_another_device(self):
        run_python(
            """
            import torch
            from torch_hologram import boundary
            first = torch.ones(4, device="hologram:0")
            second = torch.ones(4, device="hologram:1")
            assert boundary.locate(first) == boundary.locate(second) == (0, 0, 0)
            assert boundary.region(0) != boundary.region("hologram:1")
            assert len(boundary.usage("hologram:1")) == 96
            del second
            torch.hologram.empty_cache()
            assert boundary.region(1) is None and boundary.region(0) is not None
            """,
            env=several_devices(2),
        )


class TestBlocksOfAClass(HologramTestCase):
    def test_allocate_and_delete(self):
        before = boundary.usage()[95]
        address = boundary.allocate(95, 1000)
        place = boundary.boundary_address(address - boundary.region())
        self.assertEqual((place.class_index, place.byte), (95, 0))
        self.assertEqual(boundary.usage()[95].free_pages, before.free_pages - 4)
        torch.hologram.caching_allocator_delete(address)
        self.assertEqual(boundary.usage()[95], before)

    def test_full_class(self):
        run_python(
            """
            import torch
            from torch_hologram import boundary
            first = boundary.allocate(7, 40 * 256)
            try:
                boundary.allocate(7, 9 * 256)
            except ValueError as error:
                assert str(error) == (
                    "boundary class 7 has no run of 9 free pages: 8 of its 48 pages are free, "
                    "the longest run is 8"
                ), error
            else:
                raise AssertionError("allocated")
            second = boundary.allocate(7, 8 * 256)
            assert boundary.usage()[7] == (0, 0)
            for address in (first, second):
                torch.hologram.caching_allocator_delete(address)
            assert boundary.usage()[7] == (48, 48)
            """
        )

    def test_no_room_for_the_region(self):
        run_python(
            """
            import torch
            from torch_hologram import boundary
            tensor = torch.ones(4, device="hologram")  # from the linear pool
            assert boundary.region() is None and boundary.locate(tensor) is None
            try:
                boundary.allocate(0, 100)
            except torch.OutOfMemoryError as error:
                assert "Tried to allocate 1.12 MiB (1179648 bytes)" in str(error), error
            else:
                raise AssertionError("allocated")
            assert tensor.cpu().sum().item() == 4
            """,
            env={"HOLOGRAM_MEMORY_LIMIT": "1M"},
        )

    def test_double_free(self):
        run_python(
            """
            import torch
            from torch_hologram import boundary
            def refused(address, complaint):
                try:
                    torch.hologram.caching_allocator_delete(address)
                except RuntimeError as error:
                    assert complaint in str(error) and hex(address) in str(error), error
                else:
                    raise AssertionError("freed")
            address = boundary.allocate(3, 1000)
            before = boundary.usage()
            refused(address + 256, "into the middle of one")
            assert boundary.usage() == before
            torch.hologram.caching_allocator_delete(address)
            for _ in range(2):
                refused(address, "freed a block twice")
            assert torch.hologram.memory_stats()["allocation.boundary.current"] == 0
            assert torch.ones(3, device="hologram").sum().item() == 3
            """
        )


if __name__ == "__main__":
    run_tests()
