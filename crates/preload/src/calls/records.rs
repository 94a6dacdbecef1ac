//! Structs that point on: what lies behind a pointer behind a pointer.
//!
//! A record is like a call whose arguments lie in memory. Each of its fields is an [`Arg`], found
//! either behind the pointer at a byte offset (`Ptr`) or in the memory that follows (`Tail`, a
//! trailing array); and a [`Number`] in it is a byte offset in the record. Offsets are those of the
//! x86-64 ABI.

use super::shapes::Arg::{self, *};
use super::shapes::Kind;
use super::shapes::Length::*;
use super::shapes::Number::{self, *};

/// The largest record, in bytes: so much is copied to the stack to look at it.
pub const MAX_BYTES: usize = 192;

/// The longest address of a socket.
const SOCKADDR: u16 = 128;

/// A field that leads to further memory.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// At this offset is a pointer to `Arg`.
    Ptr(u8, Arg),
    /// At this offset is a pointer to `Arg`, if the number is one of these.
    PtrIf(Number, &'static [usize], u8, Arg),
    /// `Arg` itself begins at this offset.
    Tail(u8, Arg),
}
use Field::{Ptr, PtrIf, Tail};

/// The layout of a record.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bytes of the fixed part; in an array, one follows the other at this distance.
    pub bytes: u16,
    /// The kernel's access to the fixed part.
    pub kind: Kind,
    pub fields: &'static [Field],
}

const fn layout(kind: Kind, bytes: u16, fields: &'static [Field]) -> Layout {
    assert!(bytes as usize <= MAX_BYTES);
    Layout { bytes, kind, fields }
}

macro_rules! records {
    ($($(#[$doc:meta])* $id:ident $kind:ident $bytes:literal [$($field:expr),* $(,)?])*) => {
        /// Which record.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Id { $($(#[$doc])* $id),* }

        pub static LAYOUTS: &[Layout] = &[$(layout(Kind::$kind, $bytes, &[$($field),*])),*];
    };
}

impl Id {
    #[inline]
    pub fn layout(self) -> &'static Layout {
        &LAYOUTS[self as usize]
    }
}

records! {
    // Sockets. msghdr: name, namelen, iov, iovlen, control, controllen, flags.
    SendMsg In 56 [Ptr(0, In(AtMost(SOCKADDR, I32(8)))), Ptr(16, Iov(Kind::In, U64(24))),
                   Ptr(32, In(Len(U64(40))))]
    RecvMsg Out 56 [Ptr(0, Out(AtMost(SOCKADDR, I32(8)))), Ptr(16, Iov(Kind::Out, U64(24))),
                    Ptr(32, Out(Len(U64(40))))]
    /// mmsghdr: a msghdr, and the number of bytes moved.
    SendMmsg Out 64 [Ptr(0, In(AtMost(SOCKADDR, I32(8)))), Ptr(16, Iov(Kind::In, U64(24))),
                     Ptr(32, In(Len(U64(40))))]
    RecvMmsg Out 64 [Ptr(0, Out(AtMost(SOCKADDR, I32(8)))), Ptr(16, Iov(Kind::Out, U64(24))),
                     Ptr(32, Out(Len(U64(40))))]
    /// sock_fprog: length, filter.
    Fprog In 16 [Ptr(8, In(Array(8, U16(0))))]
    /// tcp_zerocopy_receive: ..., copybuf_address, copybuf_len, flags, msg_control, msg_controllen,
    /// ...
    TcpZerocopyReceive Out 64 [Ptr(24, Out(Len(I32(32)))), Ptr(40, Out(Len(U64(48))))]
    /// ipt_replace and ip6t_replace: ..., size, ..., num_counters, counters, entries.
    IptReplace In 96 [Ptr(88, Out(Array(16, U32(84)))), Tail(96, In(Len(U32(40))))]
    /// arpt_replace, the same with fewer hooks.
    ArptReplace In 80 [Ptr(72, Out(Array(16, U32(68)))), Tail(80, In(Len(U32(40))))]
    /// ifconf: length, buffer.
    Ifconf Out 16 [Ptr(8, Out(Len(I32(0))))]
    /// ifreq whose data is a struct of the driver's or of ethtool's choosing.
    IfreqData Out 40 [Ptr(16, Out(Fixed(4096)))]
    /// Statistics, registers and names of a card may be many.
    Ethtool Out 40 [Ptr(16, Out(Fixed(65535)))]
    /// tun_filter: flags, count, addresses of Ethernet.
    TunFilter In 4 [Tail(4, In(Array(6, U16(2))))]
    /// iwreq: a point is pointer, length in elements of up to some size.
    IwreqPoint Out 32 [Ptr(16, Out(Array(64, U16(24))))]
    /// rtentry with the name of its device, of which 15 bytes are copied whether it ends or not.
    Rtentry In 120 [Ptr(88, In(Fixed(15)))]

    // Signals and time.
    /// pselect6 and io_pgetevents: set, size.
    SigsetArg In 16 [Ptr(0, In(Struct(U64(8))))]
    /// io_uring_getevents_arg: sigmask, its size, minimal wait, timeout.
    EnterArg In 24 [Ptr(0, In(Struct(U32(8)))), Ptr(16, In(Fixed(16)))]
    /// A sigevent of SIGEV_THREAD carries a pointer to the 32 bytes that mq_notify sends.
    MqNotify In 64 [PtrIf(I32(12), &[2], 0, In(Fixed(32)))]

    // Futexes: value, address, flags.
    FutexWaiter In 24 [Ptr(8, Out(Fixed(4)))]

    /// iocb: data, key (written), flags, operation, ..., buffer, length. The operation says whether
    /// the buffer is one (read, write) or an array of them (readv, writev).
    Iocb Out 64 [
        PtrIf(U16(16), &[0, 1], 24, Keep(Len(U64(32)))),
        PtrIf(U16(16), &[7, 8], 24, Iov(Kind::Keep, U64(32))),
    ]

    // Processes and programs.
    /// clone_args: flags, pidfd, child_tid, parent_tid, ..., set_tid, set_tid_size, cgroup. The
    /// child's number is cleared when the thread ends.
    CloneArgs In 88 [
        Ptr(8, Out(Fixed(4))), Ptr(16, Keep(Fixed(4))), Ptr(24, Out(Fixed(4))),
        Ptr(64, In(Array(4, U64(72)))),
    ]
    KexecSegment In 32 [Ptr(0, In(Len(U64(8))))]
    /// A register set: the iovec itself is written, too.
    RegisterSet Out 16 [Ptr(0, Out(Len(U64(8))))]
    /// prctl_mm_map: ..., auxv, its size, executable.
    MmMap In 104 [Ptr(88, In(Len(U32(96))))]

    // Structs that begin with their size; the fixed part is the smallest that the kernel takes.
    SchedAttr Out 48 [Tail(0, Out(Struct(U32(0))))]
    PerfEventAttr Out 64 [Tail(0, Out(Struct(U32(4))))]
    /// mnt_id_req, and ns_id_req, which has 32 bytes at least.
    MntIdReq In 24 [Tail(0, In(Struct(U32(0))))]

    // Files.
    /// file_handle: bytes, type, handle.
    FileHandle Out 8 [Tail(8, Out(Len(U32(0))))]
    /// xattr_args: value, size, flags.
    SetXattr In 16 [Ptr(0, In(Len(U32(8))))]
    GetXattr In 16 [Ptr(0, Out(Len(U32(8))))]
    /// fiemap: ..., extent_count, ..., extents.
    Fiemap Out 32 [Tail(32, Out(Array(56, U32(24))))]
    /// file_dedupe_range: ..., dest_count, ..., destinations.
    DedupeRange Out 24 [Tail(24, Out(Array(32, U16(16))))]
    /// fsmap_head: ..., count, ..., from byte 64 on two keys of 64 bytes, records.
    Fsmap Out 192 [Tail(192, Out(Array(64, U32(8))))]
    /// fsverity_enable_arg: ..., salt length, salt, signature length, reserved, signature.
    VerityEnable In 128 [Ptr(16, In(Len(U32(12)))), Ptr(32, In(Len(U32(24))))]
    /// fsverity_digest: algorithm, length, digest.
    VerityDigest Out 4 [Tail(4, Out(Len(U16(2))))]
    /// fsverity_read_metadata_arg: type, offset, length, buffer.
    VerityMetadata In 40 [Ptr(24, Out(Len(U64(16))))]
    /// pm_scan_arg: ..., regions of 24 bytes, their number, ... The kernel may write-protect the
    /// pages that it has found before it says which, so they cannot be had again.
    PageScan Out 96 [Ptr(40, Out(Array(24, U64(48))))]
    /// procmap_query: ..., lengths of the name and the build id, these.
    MapQuery Out 104 [Ptr(88, Out(Len(U32(80)))), Ptr(96, Out(Len(U32(84))))]
    /// fscrypt_add_key_arg: for what, length of the key, ..., the key.
    FileKey Out 80 [Tail(80, In(Len(U32(40))))]
    /// fscrypt_get_policy_ex_arg: length, the policy (24 bytes is the longest).
    FilePolicy Out 8 [Tail(8, Out(AtMost(24, U64(0))))]
    /// btrfs_ioctl_search_args_v2: key, size, items.
    BtrfsSearch Out 112 [Tail(112, Out(Len(U64(104))))]
    /// btrfs_ioctl_space_args: slots, total, kinds of space.
    BtrfsSpace Out 16 [Tail(16, Out(Array(24, U64(0))))]
    /// btrfs_ioctl_ino_path_args and btrfs_ioctl_logical_ino_args: ..., size, ..., answer.
    BtrfsPaths Out 56 [Ptr(48, Out(Len(U64(8))))]
    /// btrfs_ioctl_send_args: descriptor, number of clone sources, their roots.
    BtrfsSend In 72 [Ptr(16, In(Array(8, U64(8))))]
    /// btrfs_ioctl_encoded_io_args: iovecs, their number, ...
    BtrfsEncodedRead Out 128 [Ptr(0, Iov(Kind::Out, U64(8)))]
    BtrfsEncodedWrite In 128 [Ptr(0, Iov(Kind::In, U64(8)))]
    /// btrfs_ioctl_vol_args_v2: ..., size of the quota groups to inherit, these, reserved, name.
    BtrfsVolume Out 56 [Ptr(32, In(AtMost(4096, U64(24)))), Tail(56, Out(Fixed(4040)))]
    /// xfs_fsop_bulkreq: last inode, count, buffer (of xfs_bstat, or of the smaller xfs_inogrp),
    /// number of answers.
    XfsBulkOld In 32 [
        Ptr(0, Out(Fixed(8))), Ptr(16, Out(Array(136, I32(8)))), Ptr(24, Out(Fixed(4))),
    ]
    /// xfs_bulk_ireq: inode, flags, count, ..., and the answers: xfs_bulkstat, xfs_inumbers.
    XfsBulkstat Out 64 [Tail(64, Out(Array(192, U32(12))))]
    XfsInumbers Out 64 [Tail(64, Out(Array(24, U32(12))))]
    /// getbmap and getbmapx: three 64-bit words, count (with the head), ..., extents.
    XfsBmap Out 32 [Tail(32, Out(Array(32, I32(24))))]
    XfsBmapX Out 48 [Tail(48, Out(Array(48, I32(24))))]
    /// xfs_fsop_handlereq: ..., path, flags, handle, its length, answer (a handle, or the target of
    /// a link), its length.
    XfsHandle In 56 [
        Ptr(8, Str), Ptr(24, In(Len(U32(32)))), Ptr(40, Out(Fixed(4096))), Ptr(48, Out(Fixed(4))),
    ]
    /// xfs_fsop_attrlist_handlereq: a request by handle, cursor, flags, length, buffer.
    XfsAttrList Out 88 [Ptr(24, In(Len(U32(32)))), Ptr(80, Out(Len(U32(76))))]
    /// xfs_fsop_attrmulti_handlereq: a request by handle, count, operations.
    XfsAttrMulti In 72 [
        Ptr(24, In(Len(U32(32)))), Ptr(64, Records(Id::XfsAttr, U32(56))),
    ]
    /// xfs_attr_multiop: operation, error, name, value, length, flags.
    XfsAttr Out 32 [Ptr(8, Str), Ptr(16, Out(Len(U32(24))))]

    // Devices.
    /// sg_io_hdr: command and sense lengths, number of iovecs, data length, data, command, sense.
    /// sg_io_v4 begins with a Q, has its command where the data is, and goes on to 160 bytes: the
    /// length of the sense, the sense, the numbers of iovecs and lengths of data out and in, both
    /// data.
    SgIo Out 88 [
        Ptr(16, Out(Len(U32(12)))), Ptr(16, Iov(Kind::Out, U16(10))), Ptr(24, In(Len(U8(8)))),
        Ptr(32, Out(Len(U8(9)))),
        PtrIf(U32(0), &[b'Q' as usize], 48, Out(Len(U32(44)))),
        PtrIf(U32(0), &[b'Q' as usize], 72, In(Len(U32(60)))),
        PtrIf(U32(0), &[b'Q' as usize], 72, Iov(Kind::In, U32(56))),
        PtrIf(U32(0), &[b'Q' as usize], 80, Out(Len(U32(68)))),
        PtrIf(U32(0), &[b'Q' as usize], 80, Iov(Kind::Out, U32(64))),
        Tail(88, Out(Fixed(72))),
    ]
    /// nvme_passthru_cmd, and nvme_passthru_cmd64, whose result is longer: ..., metadata, data,
    /// their lengths, ..., result.
    Nvme Out 72 [
        Ptr(16, Out(Len(U32(32)))), Ptr(24, Out(Len(U32(36)))), Tail(72, Out(Fixed(8))),
    ]
    /// The data is iovecs, the length their number.
    NvmeVector Out 80 [Ptr(16, Out(Len(U32(32)))), Ptr(24, Iov(Kind::Out, U32(36)))]
    /// nvme_user_io: ..., number of blocks less one, metadata, data. Blocks have up to 4096 bytes.
    NvmeBlocks In 48 [
        Ptr(8, Out(Fixed(4096))), Ptr(16, Out(Fixed(4096))), Ptr(16, Out(Array(8192, U16(4)))),
    ]
    /// mmc_ioc_cmd: ..., bytes of a block (512 where there are several), blocks, ..., data.
    Mmc Out 72 [Ptr(64, Out(Len(U32(36)))), Ptr(64, Out(Array(512, U32(40))))]
    /// mmc_ioc_multi_cmd: number, commands.
    MmcMulti In 8 [Tail(8, Records(Id::Mmc, U64(0)))]
    /// blkpg_ioctl_arg: operation, flags, length, blkpg_partition.
    Blkpg In 24 [Ptr(16, In(Fixed(152)))]
    /// blk_zone_report: sector, number of zones, flags, zones.
    ZoneReport Out 16 [Tail(16, Out(Array(64, U32(8))))]
    /// dm_ioctl: version, size of all with the head of 312 bytes, ...
    DeviceMapper Out 16 [Tail(0, Out(Fixed(312))), Tail(0, Out(Len(U32(12))))]
    /// uffdio_copy: destination, source, length, mode, copied.
    UffdCopy Out 40 [Ptr(8, In(Len(U64(16))))]
    /// unimapdesc: count, entries.
    Unimap Out 16 [Ptr(8, Out(Array(4, U16(0))))]
    /// consolefontdesc: 512 characters of 32 lines at most.
    ConsoleFont Out 16 [Ptr(8, Out(Fixed(16384)))]
    /// console_font_op: ..., data (a font of up to 64x128 in 512 characters, or a name).
    FontOp Out 32 [Ptr(24, Out(Fixed(65535)))]
    /// usbdevfs_ctrltransfer: ..., length, timeout, data.
    UsbControl Out 24 [Ptr(16, Out(Len(U16(6))))]
    /// usbdevfs_bulktransfer: endpoint, length, timeout, data.
    UsbBulk Out 24 [Ptr(16, Out(Len(U32(4))))]
    /// usbdevfs_urb: type, ..., data, its length, ..., number of packets (128 at most), ...,
    /// packets. It is used until it is reaped. An isochronous one (type 0) has its lengths in the
    /// packets, of up to 3 KiB each at high speed, and none of its own.
    UsbUrb Keep 56 [
        Ptr(16, Keep(Len(I32(24)))), PtrIf(U8(0), &[0], 16, Keep(Array(3072, U8(36)))),
        Tail(56, Keep(Array(12, U8(36)))),
    ]
    /// usbdevfs_ioctl: interface, request of the driver (whose upper half has the size), data.
    UsbIoctl In 16 [Ptr(8, Out(AtMost(0x3fff, U16(6))))]
    /// i2c_rdwr_ioctl_data: messages, their number.
    I2cTransfer In 16 [Ptr(0, Records(Id::I2cMessage, U32(8)))]
    /// i2c_msg: address, flags, length, data.
    I2cMessage In 16 [Ptr(8, Out(Len(U16(4))))]
    /// i2c_smbus_ioctl_data: direction, command, size, data.
    I2cSmbus In 16 [Ptr(8, Out(Fixed(34)))]
    /// spi_ioc_transfer: data out, data in, their length.
    SpiTransfer In 32 [Ptr(0, In(Len(U32(16)))), Ptr(8, Out(Len(U32(16))))]
    /// input_mask: type, bytes, bits.
    EventMask In 16 [Ptr(8, Out(Len(U32(4))))]
    /// snd_xferi: result, samples, frames. How large a frame is the device knows; eight channels of
    /// 32 bits are 32 bytes.
    PcmFrames Out 24 [Ptr(8, Out(Array(32, U64(16))))]
    /// snd_xfern: result, a pointer for each channel, frames. The device knows how many channels,
    /// too; words that are no pointers cost nothing.
    PcmChannels Out 24 [Ptr(8, RecordPointers(Id::PcmChannel, Just(8)))]
    PcmChannel Out 8 [Tail(0, Out(Fixed(65535)))]
    /// snd_ctl_elem_list: ..., room, ..., names of 64 bytes.
    SoundElements Out 80 [Ptr(16, Out(Array(64, U32(4))))]
    /// snd_ctl_tlv: element, length, data.
    SoundTlv Out 8 [Tail(8, Out(Len(U32(4))))]
    /// v4l2_buffer: ..., type (9 and 10 have planes), ..., memory (2 is the program's), place or
    /// planes, length or number of planes. A device that uses it pins it.
    VideoBuffer Out 88 [
        PtrIf(U32(4), &[9, 10], 64, Records(Id::VideoPlane, U32(72))),
        PtrIf(U32(60), &[2], 64, Out(Len(U32(72)))),
    ]
    /// v4l2_plane: ..., length, place.
    VideoPlane Out 64 [Ptr(8, Out(Len(U32(4))))]
    /// v4l2_buffer where all but the planes is the kernel's to say.
    VideoAnswer Out 88 [PtrIf(U32(4), &[9, 10], 64, Out(Array(64, U32(72))))]
    /// v4l2_ext_controls: ..., count, ..., controls.
    VideoControls Out 32 [Ptr(24, Records(Id::VideoControl, U32(4)))]
    /// v4l2_ext_control: name, size (0: the value stands here), reserved, value or its place.
    VideoControl Out 20 [Ptr(12, Out(Len(U32(4))))]
    /// drm_amdgpu_cs: context, list of buffers, number of chunks, flags, pointers to chunks.
    AmdgpuSubmission Out 24 [Ptr(16, RecordPointers(Id::AmdgpuChunk, U32(8)))]
    /// drm_amdgpu_cs_chunk: kind (6 is a list of buffers), length in words of 32 bits, data.
    AmdgpuChunk In 16 [
        Ptr(8, In(Array(4, U32(4)))), PtrIf(U32(0), &[6], 8, Record(Id::AmdgpuBuffers)),
    ]
    /// drm_amdgpu_bo_list_in: operation, list, number of buffers, size of each (8 is all that the
    /// kernel knows), buffers.
    AmdgpuBuffers Out 24 [Ptr(16, In(Array(8, U32(8))))]
    /// NVOS54_PARAMETERS: client, object, command, flags, parameters, their size, status.
    NvidiaControl Out 32 [Ptr(16, Out(Len(U32(24))))]
    /// NVOS21_PARAMETERS and NVOS64_PARAMETERS: client, parent, object, class, parameters, ... The
    /// class says how long they are. The longer one has the rights that are asked for as well.
    NvidiaObject Out 32 [Ptr(16, Out(Fixed(4096)))]
    NvidiaObjectWithRights Out 48 [Ptr(16, Out(Fixed(4096))), Ptr(24, In(Fixed(64)))]
    /// perf_event_query_bpf: room, number, programs.
    PerfPrograms Out 8 [Tail(8, Out(Array(4, U32(0))))]
    /// cdrom_generic_command: ..., buffer, length, ..., sense.
    CdromGeneric Out 64 [Ptr(16, Out(Len(U32(24)))), Ptr(32, Out(Fixed(64)))]
    CdromAudio Out 24 [Ptr(16, Out(Array(2352, I32(8))))]

    // Virtual machines. A head that counts what follows.
    KvmCpuid Out 8 [Tail(8, Out(Array(40, U32(0))))]
    KvmMsrs Out 8 [Tail(8, Out(Array(16, U32(0))))]
    KvmMsrList Out 4 [Tail(4, Out(Array(4, U32(0))))]
    KvmRouting In 8 [Tail(8, In(Array(48, U32(0))))]
    /// kvm_dirty_log: slot, padding, one bit for each page of the slot, whose size the kernel
    /// knows. The bits are cleared before they are copied out, so they cannot be had again: nearly
    /// 1 MiB is enough for a slot of nearly 32 GiB.
    KvmDirtyLog In 16 [Ptr(8, Out(Array(4096, Just(255))))]
    /// kvm_clear_dirty_log: slot, number of pages, first page, bits.
    KvmClearLog In 24 [Ptr(16, In(Bits(U32(4))))]
    /// kvm_device_attr: flags, group, name, value.
    KvmAttribute In 24 [Ptr(16, Out(Fixed(4096)))]
    /// kvm_nested_state: flags, format, size, ...
    KvmNested Out 128 [Tail(0, Out(AtMost(u16::MAX, U32(4))))]

    // bpf: the attributes that carry pointers, by command. The sizes of keys and values belong to
    // the map; a page and 64 KiB are what they are in practice.
    BpfElement Out 32 [Ptr(8, Out(Fixed(4096))), Ptr(16, Out(Fixed(65535)))]
    BpfLoad Out 168 [
        Ptr(8, In(Array(8, U32(4)))), Ptr(16, Str), Ptr(32, Out(Len(U32(28)))),
        Ptr(80, In(Array(8, U32(88)))),
        Ptr(96, In(Array(16, U32(104)))), Ptr(120, In(Fixed(256))),
        Ptr(120, In(Array(4, U32(148)))),
        Ptr(128, In(Array(16, U32(116)))), Ptr(152, In(Len(U32(160)))),
    ]
    BpfPath In 16 [Ptr(0, Str)]
    BpfTestRun Out 80 [
        Ptr(16, In(Len(U32(8)))), Ptr(24, Out(Len(U32(12)))), Ptr(48, In(Len(U32(40)))),
        Ptr(56, Out(Len(U32(44)))),
    ]
    BpfInfo Out 16 [Ptr(8, Out(Len(U32(4))))]
    BpfQuery Out 64 [Ptr(16, Out(Array(4, U32(24)))), Ptr(32, Out(Array(4, U32(24))))]
    BpfBtf Out 32 [Ptr(0, In(Len(U32(16)))), Ptr(8, Out(Len(U32(20))))]
    BpfTask Out 48 [Ptr(16, Out(Len(U32(12))))]
    BpfBatch Out 56 [
        Ptr(0, In(Fixed(4096))), Ptr(8, Out(Fixed(4096))), Ptr(16, Out(Array(64, U32(32)))),
        Ptr(24, Out(Array(64, U32(32)))),
    ]
    /// The attach type says of what the link is: 28 an iterator, 42 and 56 probes of the kernel (by
    /// their symbols or addresses), 48 and 57 probes of a file.
    BpfLink Out 64 [
        PtrIf(U32(8), &[28], 16, In(Len(U32(24)))),
        PtrIf(U32(8), &[42, 56], 24, RecordPointers(Id::BpfSymbol, U32(20))),
        PtrIf(U32(8), &[42, 56], 32, In(Array(8, U32(20)))),
        PtrIf(U32(8), &[42, 56], 40, In(Array(8, U32(20)))),
        PtrIf(U32(8), &[48, 57], 16, Str),
        PtrIf(U32(8), &[48, 57], 24, In(Array(8, U32(48)))),
        PtrIf(U32(8), &[48, 57], 32, In(Array(8, U32(48)))),
        PtrIf(U32(8), &[48, 57], 40, In(Array(8, U32(48)))),
    ]
    BpfSymbol In 1 [Tail(0, Str)]
    /// The program's output, which is gone once it was read.
    BpfStream In 24 [Ptr(0, Out(Len(U32(8))))]

    // Keys.
    /// keyctl_kdf_params: hash name, other information, its length.
    KeyKdf In 56 [Ptr(0, Str), Ptr(8, In(Len(U32(16))))]

    // io_uring_register.
    /// io_uring_files_update: offset, reserved, descriptors (how many is an argument of the call).
    RingUpdate Out 16 [Ptr(8, Out(Fixed(65535)))]
    /// io_uring_rsrc_register: number, flags, reserved, data, tags.
    RingFiles In 32 [Ptr(16, In(Array(4, U32(0)))), Ptr(24, In(Array(8, U32(0))))]
    RingBuffers In 32 [Ptr(16, Iov(Kind::Keep, U32(0))), Ptr(24, In(Array(8, U32(0))))]
    /// io_uring_rsrc_update2: offset, reserved, data, tags, number.
    RingFilesUpdate In 32 [Ptr(8, In(Array(4, U32(24)))), Ptr(16, In(Array(8, U32(24))))]
    RingBuffersUpdate In 32 [Ptr(8, Iov(Kind::Keep, U32(24))), Ptr(16, In(Array(8, U32(24))))]
    /// io_uring_buf_reg: the ring, its entries.
    RingProvided Out 40 [Ptr(0, Keep(Array(16, U32(8))))]
    /// io_uring_mem_region_reg, and the region: address, size.
    RingMemory Out 32 [Ptr(0, Record(Id::RingRegion))]
    RingRegion Out 64 [Ptr(0, Keep(Len(U64(8))))]
    /// io_uring_zcrx_ifq_reg: ..., area, region.
    RingZcrx Out 96 [Ptr(16, Record(Id::RingArea)), Ptr(24, Record(Id::RingRegion))]
    RingArea Out 48 [Ptr(0, Keep(Len(U64(8))))]
    /// io_uring_query_hdr: next, data, operation, size.
    RingQuery Out 32 [Ptr(8, Out(Len(U32(20))))]
}
