//! The argument of ioctl, from its request number.
//!
//! Since Linux 2.0 a request carries direction and size of its argument: bits 0-7 number, 8-15
//! type, 16-29 size, 30-31 direction. Older ones (terminals, sockets, disks) carry nothing and are
//! listed here; so are those whose argument is longer than the number says, or points on. An
//! argument that is neither listed nor sized gets a page, in case it is a pointer.

use super::records::Id;
use super::shapes::Arg::{self, *};
use super::shapes::Length::*;
use super::shapes::Number::Just;

/// The argument's shape.
pub fn argument(request: u32) -> Arg {
    match request {
        // Terminals: TCGETS, TCSETS, TCSETSW, TCSETSF (36 bytes); TCGETA, TCSETA, ... (termio)
        0x5401..=0x5404 => Out(Fixed(36)),
        0x5405..=0x5408 => Out(Fixed(18)),
        // TCSBRK, TCXONC, TCFLSH, TIOCEXCL, TIOCNXCL, TIOCSCTTY, TIOCCONS, TIOCNOTTY, TCSBRKP,
        // TIOCSBRK, TIOCCBRK, TIOCSERCONFIG, TIOCVHANGUP, TIOCMIWAIT, FIONCLEX, FIOCLEX
        0x5409..=0x540e
        | 0x541d
        | 0x5422
        | 0x5425
        | 0x5427
        | 0x5428
        | 0x5437
        | 0x5450
        | 0x5451
        | 0x5453
        | 0x545c => Int,
        // TIOCGWINSZ, TIOCSWINSZ
        0x5413 | 0x5414 => Out(Fixed(8)),
        // TIOCSTI; TIOCLINUX takes a struct by its first byte
        0x5412 => In(Fixed(1)),
        0x541c => Out(Fixed(256)),
        // TIOCGPGRP, TIOCSPGRP, TIOCOUTQ, TIOCM*, TIOC[GS]SOFTCAR, FIONREAD, TIOCPKT, FIONBIO,
        // TIOC[GS]ETD, TIOCGSID, FIOASYNC, TIOCSERGETLSR
        0x540f..=0x5411
        | 0x5415..=0x541b
        | 0x5420
        | 0x5421
        | 0x5423
        | 0x5424
        | 0x5429
        | 0x5452
        | 0x5459 => Out(Fixed(4)),
        // FIOQSIZE
        0x5460 => Out(Fixed(8)),
        // TIOC[GS]SERIAL; TIOC[GS]RS485; TIOCGICOUNT; TIOC[GS]LCKTRMIOS
        0x541e | 0x541f => Out(Fixed(72)),
        0x542e | 0x542f => Out(Fixed(32)),
        0x545d => Out(Fixed(80)),
        0x5456 | 0x5457 => Out(Fixed(36)),

        // Files: FIBMAP, FIGETBSZ; FICLONE takes a descriptor; FS_IOC_FIEMAP and
        // EXT4_IOC_GET_ES_CACHE, FIDEDUPERANGE, FS_IOC_GETFSMAP
        0x0001 | 0x0002 => Out(Fixed(4)),
        0x4004_9409 => Int,
        0xc020_660b | 0xc020_662a => Record(Id::Fiemap),
        0xc018_9436 => Record(Id::DedupeRange),
        0xc0c0_583b => Record(Id::Fsmap),
        // FS_IOC_ENABLE_VERITY, FS_IOC_MEASURE_VERITY, FS_IOC_READ_VERITY_METADATA
        0x4080_6685 => Record(Id::VerityEnable),
        0xc004_6686 => Record(Id::VerityDigest),
        0xc028_6687 => Record(Id::VerityMetadata),
        // PAGEMAP_SCAN, PROCMAP_QUERY; FS_IOC_ADD_ENCRYPTION_KEY, FS_IOC_GET_ENCRYPTION_POLICY_EX
        0xc060_6610 => Record(Id::PageScan),
        0xc068_6611 => Record(Id::MapQuery),
        0xc050_6617 => Record(Id::FileKey),
        0xc009_6616 => Record(Id::FilePolicy),
        // btrfs: TREE_SEARCH_V2, SPACE_INFO, INO_PATHS, LOGICAL_INO and its second version, SEND,
        // ENCODED_READ, ENCODED_WRITE; SNAP_CREATE_V2, SUBVOL_CREATE_V2
        0xc070_9411 => Record(Id::BtrfsSearch),
        0xc010_9414 => Record(Id::BtrfsSpace),
        0xc038_9423 | 0xc038_9424 | 0xc038_943b => Record(Id::BtrfsPaths),
        0x4048_9426 => Record(Id::BtrfsSend),
        0x8080_9440 => Record(Id::BtrfsEncodedRead),
        0x4080_9440 => Record(Id::BtrfsEncodedWrite),
        0x5000_9417 | 0x5000_9418 => Record(Id::BtrfsVolume),
        // XFS: FSBULKSTAT, FSBULKSTAT_SINGLE, FSINUMBERS; BULKSTAT; INUMBERS; GETBMAP and
        // GETBMAPA, GETBMAPX; the requests by handle, ATTRLIST_BY_HANDLE, ATTRMULTI_BY_HANDLE
        0xc020_5865..=0xc020_5867 => Record(Id::XfsBulkOld),
        0x8040_587f => Record(Id::XfsBulkstat),
        0x8040_5880 => Record(Id::XfsInumbers),
        0xc020_5826 | 0xc020_582c => Record(Id::XfsBmap),
        0xc030_5838 => Record(Id::XfsBmapX),
        0xc038_5868..=0xc038_586c => Record(Id::XfsHandle),
        0x4058_587a => Record(Id::XfsAttrList),
        0x4048_587b => Record(Id::XfsAttrMulti),

        // Sockets: FIOSETOWN, SIOCSPGRP, FIOGETOWN, SIOCGPGRP, SIOCATMARK; SIOCGSTAMP and
        // SIOCGSTAMPNS of old
        0x8901..=0x8905 => Out(Fixed(4)),
        0x8906 | 0x8907 => Out(Fixed(16)),
        // SIOCADDRT, SIOCDELRT; SIOCGIFCONF; SIOC*IWREQ; SIOCDARP, SIOCGARP, SIOCSARP
        0x890b | 0x890c => Record(Id::Rtentry),
        0x8912 => Record(Id::Ifconf),
        0x8b00..=0x8bff => Record(Id::IwreqPoint),
        0x8953..=0x8955 => Out(Fixed(68)),
        // SIOCETHTOOL; SIOC[GS]IFMAP stay within ifreq; SIOCGMII..., SIOCBONDINFO...,
        // SIOC[GS]HWTSTAMP; private ones
        0x8946 => Record(Id::Ethtool),
        0x8947..=0x8949 | 0x8990..=0x89ff => Record(Id::IfreqData),
        // ifreq, and vlan, bridge and tunnel requests of that size or little more
        0x8910..=0x8952 | 0x8956..=0x898f => Out(Fixed(128)),

        // Block devices: BLKPG; BLKREPORTZONE (BLKROSET, BLKROGET, BLKGETSIZE, BLKRAGET,
        // BLKSSZGET, ... BLKDISCARD: two u64)
        0x1269 => Record(Id::Blkpg),
        0xc010_1282 => Record(Id::ZoneReport),
        0x1277 | 0x127d | 0x127f => Out(Fixed(16)),
        0x125d..=0x1268 | 0x1278..=0x127c | 0x127e => Out(Fixed(8)),
        // HDIO_*; FD*, CDROM*: structs of up to some hundred bytes; CDROMREADAUDIO,
        // CDROM_SEND_PACKET
        0x0301..=0x03ff => Out(Fixed(512)),
        0x530e => Record(Id::CdromAudio),
        0x5393 => Record(Id::CdromGeneric),
        // LOOP_SET_STATUS, LOOP_GET_STATUS (168); the 64-bit ones (232); LOOP_CONFIGURE; the rest
        // take numbers
        0x4c02 | 0x4c03 => Out(Fixed(168)),
        0x4c04 | 0x4c05 => Out(Fixed(232)),
        0x4c0a => Out(Fixed(304)),
        0x4c00 | 0x4c01 | 0x4c06..=0x4c09 | 0x4c80..=0x4c82 => Int,
        // DM_*: what is asked and answered follows the head
        0xc138_fd00..=0xc138_fd1f => Record(Id::DeviceMapper),
        // SG_IO; NVME_IOCTL_ADMIN_CMD, IO_CMD, ADMIN64_CMD, IO64_CMD; IO64_CMD_VEC; SUBMIT_IO;
        // MMC_IOC_CMD, MMC_IOC_MULTI_CMD
        0x2285 => Record(Id::SgIo),
        0xc048_4e41 | 0xc048_4e43 | 0xc050_4e47 | 0xc050_4e48 => Record(Id::Nvme),
        0xc050_4e49 => Record(Id::NvmeVector),
        0x4030_4e42 => Record(Id::NvmeBlocks),
        0xc048_b300 => Record(Id::Mmc),
        0xc008_b301 => Record(Id::MmcMulti),
        // USBDEVFS_CONTROL, BULK, SUBMITURB, IOCTL
        0xc018_5500 => Record(Id::UsbControl),
        0xc018_5502 => Record(Id::UsbBulk),
        0x8038_550a => Record(Id::UsbUrb),
        0xc010_5512 => Record(Id::UsbIoctl),
        // I2C_RDWR, I2C_SMBUS; SPI_IOC_MESSAGE, whose size counts transfers of 32 bytes
        0x0707 => Record(Id::I2cTransfer),
        0x0720 => Record(Id::I2cSmbus),
        _ if request & 0xc000_ffff == 0x4000_6b00 => {
            Records(Id::SpiTransfer, Just((request >> 16 & 0x3fff).div_ceil(32).min(255) as u8))
        }
        // EVIOCGMASK, EVIOCSMASK
        0x8010_4592 | 0x4010_4593 => Record(Id::EventMask),
        // Sound: SNDRV_PCM_IOCTL_WRITEI_FRAMES, READI_FRAMES; WRITEN_FRAMES, READN_FRAMES;
        // SNDRV_CTL_IOCTL_ELEM_LIST; TLV_READ, TLV_WRITE, TLV_COMMAND
        0x4018_4150 | 0x8018_4151 => Record(Id::PcmFrames),
        0x4018_4152 | 0x8018_4153 => Record(Id::PcmChannels),
        0xc050_5510 => Record(Id::SoundElements),
        0xc008_551a..=0xc008_551c => Record(Id::SoundTlv),
        // Video: VIDIOC_QUERYBUF, VIDIOC_DQBUF; VIDIOC_QBUF, VIDIOC_PREPARE_BUF;
        // VIDIOC_G_EXT_CTRLS, VIDIOC_S_EXT_CTRLS, VIDIOC_TRY_EXT_CTRLS
        0xc058_5609 | 0xc058_5611 => Record(Id::VideoAnswer),
        0xc058_560f | 0xc058_565d => Record(Id::VideoBuffer),
        0xc020_5647..=0xc020_5649 => Record(Id::VideoControls),
        // Graphics processors whose answer to a bad address is no EFAULT, or whose requests point
        // on further than a second attempt looks: DRM_IOCTL_AMDGPU_BO_LIST, DRM_IOCTL_AMDGPU_CS;
        // NV_ESC_RM_CONTROL, and NV_ESC_RM_ALLOC in two lengths
        0xc018_6443 => Record(Id::AmdgpuBuffers),
        0xc018_6444 => Record(Id::AmdgpuSubmission),
        0xc020_462a => Record(Id::NvidiaControl),
        0xc020_462b => Record(Id::NvidiaObject),
        0xc030_462b => Record(Id::NvidiaObjectWithRights),
        // Consoles: [GP]IO_UNIMAP; [GP]IO_FONTX; KDFONTOP; KDSK/GKBSENT, KDGKBDIACRUC; the rest
        // fits a page
        0x4b66 | 0x4b67 => Record(Id::Unimap),
        0x4b6b | 0x4b6c => Record(Id::ConsoleFont),
        0x4b72 => Record(Id::FontOp),
        // PIO_FONT, GIO_FONT: 256 characters of 32 lines
        0x4b60 | 0x4b61 => Out(Fixed(8192)),

        // KVM: GET_SUPPORTED_CPUID, GET_EMULATED_CPUID, SET_CPUID2, GET_CPUID2,
        // GET_SUPPORTED_HV_CPUID; GET_MSRS, SET_MSRS; GET_MSR_INDEX_LIST,
        // GET_MSR_FEATURE_INDEX_LIST; SET_GSI_ROUTING; GET_DIRTY_LOG, CLEAR_DIRTY_LOG;
        // SET_DEVICE_ATTR, GET_DEVICE_ATTR; GET_XSAVE, SET_XSAVE, GET_XSAVE2; GET_NESTED_STATE,
        // SET_NESTED_STATE
        0xc008_ae05 | 0xc008_ae09 | 0x4008_ae90 | 0xc008_ae91 | 0xc008_aec1 => Record(Id::KvmCpuid),
        0xc008_ae88 | 0x4008_ae89 => Record(Id::KvmMsrs),
        0xc004_ae02 | 0xc004_ae0a => Record(Id::KvmMsrList),
        0x4008_ae6a => Record(Id::KvmRouting),
        0x4010_ae42 => Record(Id::KvmDirtyLog),
        0xc018_aec0 => Record(Id::KvmClearLog),
        0x4018_aee1 | 0x4018_aee2 => Record(Id::KvmAttribute),
        0x9000_aea4 | 0x5000_aea5 | 0x9000_aecf => Out(Fixed(16384)),
        0xc080_aebe | 0x4080_aebf => Record(Id::KvmNested),

        // UFFDIO_COPY
        0xc028_aa03 => Record(Id::UffdCopy),
        // Packet filters: PPPIOCSPASS, PPPIOCSACTIVE, TUNATTACHFILTER, TUNDETACHFILTER
        0x4010_7447 | 0x4010_7446 | 0x4010_54d5 | 0x4010_54d6 => Record(Id::Fprog),
        // TUNSETIFF, TUNSETQUEUE, TUNGETIFF: an ifreq; TUNSETTXFILTER
        0x4004_54ca | 0x4004_54d9 | 0x8004_54d2 => Out(Fixed(40)),
        0x4004_54d1 => Record(Id::TunFilter),
        // PERF_EVENT_IOC_SET_FILTER: a string; PERF_EVENT_IOC_QUERY_BPF;
        // PERF_EVENT_IOC_MODIFY_ATTRIBUTES
        0x4008_2406 => Str,
        0xc008_240a => Record(Id::PerfPrograms),
        0x4008_240b => Record(Id::PerfEventAttr),
        _ => by_size(request),
    }
}

/// A request that is not listed.
fn by_size(request: u32) -> Arg {
    let direction = request >> 30;
    let bytes = request >> 16 & 0x3fff;
    if direction != 0 && bytes != 0 { Out(Fixed(bytes as u16)) } else { Out(Fixed(4096)) }
}
