import { Column, Entity, PrimaryColumn, PrimaryGeneratedColumn } from 'typeorm';

/** The protected state of one key. */
@Entity('campaign_cell')
export class Cell {
  @PrimaryColumn('text') key!: string;
  /** Counts the writes of the key; raised under the row's lock. */
  @Column('int') seq!: number;
  @Column('float8') value!: number;
  @Column('float8') balance!: number;
}

/** One write of one key, in the transaction of the write. */
@Entity('campaign_log')
export class LogEntry {
  @PrimaryColumn('text') key!: string;
  @PrimaryColumn('int') seq!: number;
  @Column('text') attempt!: string;
  @Column('bigint') generation!: number;
  @Column('text') owner!: string;
  @Column('int', { name: 'read_seq' }) readSeq!: number;
  @Column('text') field!: 'value' | 'balance' | 'entry';
  @Column('float8', { nullable: true }) read!: number | null;
  @Column('float8', { nullable: true }) written!: number | null;
  @Column('text', { nullable: true }) operation!: string | null;
}

/** The effect of an append. */
@Entity('campaign_entry')
export class Entry {
  @PrimaryGeneratedColumn() id!: number;
  @Column('text') key!: string;
  @Column('text') attempt!: string;
}
